// Prints JSON schemas and texts that their grammars allow, for tests/unit/grammar_schemas_test.py to
// validate. A line is
// {"schema": S, "error": E} or {"schema": S, "texts": [T...], "unfinished": N}.
//
//   grammar_random_schemas SEED COUNT    random schemas, the same everywhere
//   grammar_random_schemas               the schemas that come as lines on stdin
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "common/grammar/grammar.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr size_t kTexts = 6, kSoon = 40, kMost = 400;

class Random {
 public:
  explicit Random(uint32_t seed) : bits_(seed) {}
  // Returns a number in [0, n).
  size_t Below(size_t n) { return bits_() % n; }
  bool OneIn(size_t n) { return Below(n) == 0; }
  Json Of(const Json& list) { return list[Below(list.size())]; }

 private:
  std::mt19937 bits_;
};

// Draws schemas that the check accepts, others that it refuses, and at times one that it must not accept.
class Schemas {
 public:
  explicit Schemas(uint32_t seed) : random_(seed) {}

  Json Next() {
    Json schema = Schema(3);
    if (schema.is_object() && references_) {
      schema["$defs"] = {{"t", Schema(1)}, {"u", Schema(2)}};
      references_ = false;
    }
    return schema;
  }

 private:
  Json Schema(int depth) {
    if (random_.OneIn(40)) return random_.Of({true, Json::object()});
    Json schema = Json::object();
    if (random_.OneIn(6)) schema[random_.Of({"title", "description", "x-vendor"})] = "t";
    if (random_.OneIn(30)) schema["format"] = Format();
    switch (random_.Below(depth > 0 ? 14 : 7)) {
      case 0:
        Finite(schema);
        break;
      case 1:
        references_ = true;
        schema["$ref"] = random_.Of({"#/$defs/t", "#/$defs/u", "#/$defs/t", "#"});
        break;
      case 2:
        schema[random_.Of({"anyOf", "anyOf", "oneOf", "allOf"})] = Several(depth);
        break;
      case 3:
        for (const char* const type : {"string", "integer", "null", "array", "object"}) {
          if (random_.OneIn(2)) schema["type"].push_back(type), Assert(schema, type, depth);
        }
        break;
      default: {
        const Json type = random_.Of(
            {"string", "integer", "number", "string", "array", "object", "object", "array", "boolean"});
        schema["type"] = type;
        Assert(schema, type, depth);
      }
    }
    // Keywords that the check has to refuse beside the others, unless it forgets them.
    if (random_.OneIn(25)) schema[random_.Of({"minLength", "minItems", "minProperties", "multipleOf"})] = 3;
    if (random_.OneIn(60))
      schema[random_.Of({"not", "if", "contains", "propertyNames"})] = Json{{"type", "integer"}};
    if (random_.OneIn(60)) schema["uniqueItems"] = true;
    if (random_.OneIn(40)) schema.erase("type");
    return schema;
  }

  Json Several(int depth) {
    Json schemas = Json::array();
    for (size_t i = random_.Below(3) + 1; i > 0; --i) schemas.push_back(Schema(depth - 1));
    return schemas;
  }

  void Finite(Json& schema) {
    const Json values = {"a",
                         "",
                         "a\"b\\/\n",
                         "\u00e9",
                         1,
                         -7,
                         0.5,
                         1e30,
                         123456789012345,
                         1.0,
                         true,
                         false,
                         nullptr,
                         Json::array({1, "x"}),
                         {{"a", 1}},
                         {{"title", 1}},
                         {{"title", 2}}};
    if (random_.OneIn(2)) {
      schema["const"] = random_.Of(values);
    } else {
      for (size_t i = random_.Below(4) + 1; i > 0; --i) schema["enum"].push_back(random_.Of(values));
    }
    if (random_.OneIn(3)) schema["type"] = random_.Of({"string", "integer", "number", "object"});
  }

  Json Name() { return random_.Of({"a", "b", "ab", "title", "a\"b", "\u00e9", ""}); }

  Json Format() {
    return random_.Of({"date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri",
                       "uri-reference", "uri-template", "email", "json-pointer", "relative-json-pointer",
                       "vendor"});
  }

  Json Pattern() {
    return random_.Of({"^a*$",
                       "a|bc*",
                       "^[^b]+$",
                       "^.{2,4}$",
                       "^(a|bc*){2,}$",
                       "^(ab?|c){1,}d$",
                       "^[\"a-c]+$",
                       "^\\d{3}-\\w+$",
                       "^[!-~]\\D?$",
                       "^[^\\d]{0,3}x$",
                       "^(?:a|)(b|c)??$",
                       "^a\\.b$",
                       "^[\\x20-\\x7e]{3}$",
                       "^\\s*\\u0061$",
                       "^x{130,140}$",
                       "^.{150}$",
                       "^(a|b{2,}){2,}$",
                       "^([a-c]b?){3,}$",
                       "(^a)|b",
                       "^$",
                       "\"",
                       "^\\\\$"});
  }

  Json Bound() {
    return random_.Of({0,
                       1,
                       -1,
                       10,
                       -10,
                       7,
                       -128,
                       99,
                       100,
                       12345,
                       -12345,
                       0.5,
                       -0.5,
                       1.25,
                       -3.75,
                       0.001,
                       123.456,
                       -0.1,
                       1e6,
                       1e-7,
                       1e15,
                       -1e15,
                       0.1234567,
                       2.9999999,
                       1000000,
                       9007199254740992,
                       -9223372036854775807 - 1});
  }

  void Maybe(Json& schema, const char* keyword, const Json& value, size_t odds = 3) {
    if (random_.OneIn(odds)) schema[keyword] = value;
  }

  void Assert(Json& schema, const std::string& type, int depth) {
    if (type == "string") {
      Maybe(schema, "pattern", Pattern());
      Maybe(schema, "format", Format(), 5);
      Maybe(schema, "minLength", random_.Below(4), 4);
      Maybe(schema, "maxLength", random_.Below(5) + 1, 4);
    } else if (type == "integer" || type == "number") {
      for (const char* const bound : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
        Maybe(schema, bound, Bound());
      Maybe(schema, "multipleOf", random_.Of({1, 2, 3, 7, 12, 100}), 6);
    } else if (type == "array") {
      if (random_.OneIn(2))
        schema["items"] = random_.OneIn(5) ? random_.Of({true, false}) : Schema(depth - 1);
      if (random_.OneIn(3)) schema["prefixItems"] = Several(depth);
      if (random_.OneIn(6))
        schema["unevaluatedItems"] = random_.OneIn(2) ? random_.Of({true, false}) : Schema(depth - 1);
      Maybe(schema, "minItems", random_.Below(5), 4);
      Maybe(schema, "maxItems", random_.Below(6), 4);
    } else if (type == "object") {
      Object(schema, depth);
    }
  }

  void Object(Json& schema, int depth) {
    if (!random_.OneIn(4)) {
      for (size_t i = random_.Below(5); i > 0; --i) schema["properties"][Name()] = Schema(depth - 1);
    }
    if (schema.contains("properties")) {
      for (const auto& [name, property] : schema["properties"].items()) {
        if (random_.OneIn(2)) schema["required"].push_back(name);
      }
    } else {
      if (random_.OneIn(3)) schema["patternProperties"][Pattern()] = Schema(depth - 1);
      if (random_.OneIn(12)) schema["patternProperties"][Pattern()] = Schema(depth - 1);
      if (random_.OneIn(3)) schema["propertyNames"] = Names(depth);
    }
    if (random_.OneIn(20)) schema["required"].push_back(Name());
    if (random_.OneIn(20)) schema["propertyNames"] = Names(depth);
    const size_t others = schema.contains("properties") ? 12 : 2;
    if (random_.OneIn(others))
      schema["additionalProperties"] = random_.OneIn(3) ? Json(true) : Schema(depth - 1);
    if (random_.OneIn(8)) schema["additionalProperties"] = false;
    if (random_.OneIn(12))
      schema["unevaluatedProperties"] = random_.OneIn(3) ? Json(true) : Schema(depth - 1);
    Maybe(schema, "minProperties", random_.Below(4), 4);
    Maybe(schema, "maxProperties", random_.Below(6), 4);
  }

  Json Names(int depth) {
    switch (random_.Below(5)) {
      case 0:
        return {{"pattern", Pattern()}};
      case 1:
        return {{"minLength", random_.Below(3)}, {"maxLength", 3}};
      case 2:
        return {{"enum", {"a", "b", "title"}}};
      case 3:
        return {{"format", Format()}};
      default:
        return Schema(depth > 0 ? depth - 1 : 0);
    }
  }

  Random random_;
  bool references_ = false;
};

const std::vector<std::string>& Tokens() {
  static const auto* const tokens = [] {
    auto* const all = new std::vector<std::string>;
    for (int c = 0; c < 128; ++c) all->emplace_back(1, static_cast<char>(c));
    all->insert(all->end(), {"\": ",
                             "\",",
                             "\"}",
                             "{\"",
                             "\"a",
                             "\"b\"",
                             "title",
                             "\\\"",
                             "\\u00",
                             "\\\\",
                             "61",
                             "tr",
                             "ue",
                             "null",
                             "12",
                             "\t\"",
                             "}}",
                             "]}",
                             "[[",
                             "],",
                             ", \"",
                             "00",
                             ".5",
                             "e1",
                             "\u00e9",
                             "\xc3",
                             "\xa9",
                             "\u4e00\u4e00",
                             "\xf0\x9f\x98\x80",
                             "\"\u00e9"});
    all->emplace_back();  // the end
    return all;
  }();
  return *tokens;
}

// Draws a text. Returns false if it does not end.
bool Draw(const Grammar& grammar, Random& random, std::string& text) {
  const auto end = static_cast<TokenId>(Tokens().size()) - 1;
  const auto mask = grammar.NewMask();
  std::vector<TokenId> output;
  text.clear();
  for (size_t step = 0; step < kMost; ++step) {
    std::vector<float> row(Tokens().size(), 0);
    mask->Apply(output, row);
    std::vector<TokenId> allowed, closing;
    for (TokenId token = 0; token <= end; ++token) {
      if (std::isinf(row[static_cast<size_t>(token)])) continue;
      allowed.push_back(token);
      const std::string& bytes = Tokens()[static_cast<size_t>(token)];
      if (bytes == "\"" || bytes == "}" || bytes == "]") closing.push_back(token);
    }
    if (allowed.empty()) return false;
    if (allowed.back() == end && (step > kSoon || random.OneIn(3))) return true;
    const bool close = !closing.empty() && (step > kSoon ? !random.OneIn(8) : random.OneIn(3));
    const auto& choices = close ? closing : allowed;
    const TokenId token = choices[random.Below(choices.size())];
    if (token == end) return true;
    output.push_back(token);
    text += Tokens()[static_cast<size_t>(token)];
  }
  return false;
}

Json Tried(const Json& schema, Random& random) {
  static const GrammarVocabulary vocabulary(Tokens(), {static_cast<TokenId>(Tokens().size()) - 1});
  const auto grammar = Grammar::Compile({GrammarSyntax::kJsonSchema, schema.dump()}, vocabulary);
  if (!grammar.ok()) return {{"schema", schema}, {"error", std::string(grammar.status().message())}};
  Json line = {{"schema", schema}, {"texts", Json::array()}, {"unfinished", 0}};
  for (size_t i = 0; i < kTexts; ++i) {
    std::string text;
    if (Draw(**grammar, random, text)) {
      line["texts"].push_back(text);
    } else {
      line["unfinished"] = line["unfinished"].get<int>() + 1;
    }
  }
  return line;
}

int Run(int argc, char** argv) {
  Random random(1);
  const auto print = [&](const Json& schema) { std::cout << Tried(schema, random).dump() << std::endl; };
  if (argc == 3) {
    Schemas schemas(static_cast<uint32_t>(std::atoi(argv[1])));
    for (int i = std::atoi(argv[2]); i > 0; --i) print(schemas.Next());
  } else {
    for (std::string line; std::getline(std::cin, line);) print(Json::parse(line));
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) { return outrider::Run(argc, argv); }
