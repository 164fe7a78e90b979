// Which schemas are refused and which are not. grammar_schemas_test.py checks that texts of the others are
// valid under their schemas.
#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/grammar/grammar.h"
#include "common/grammar/json_pattern.h"
#include "common/grammar/json_schema.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;

absl::Status Compiles(GrammarSyntax syntax, const std::string& text) {
  static const auto* const vocabulary = new GrammarVocabulary({"a", "\"", "{", "}", "\t", ""}, {5});
  return Grammar::Compile({syntax, text}, *vocabulary).status();
}
absl::Status Compiles(const std::string& schema) { return Compiles(GrammarSyntax::kJsonSchema, schema); }

void ExpectRefused(const absl::Status& status, const std::string& what, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  EXPECT_EQ(MetadataOf(status, "field"), "grammar") << text;
  EXPECT_THAT(status.message(), HasSubstr(what)) << text;
}

TEST(JsonSchema, WhatXGrammarIgnoresIsRefusedByNameAndPlace) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"type": "string", "not": {"const": "a"}})", "not is not supported at \"\""},
      {R"({"properties": {"a": {"if": {}}}})", "if is not supported at \"/properties/a\""},
      {R"({"type": "array", "items": {}, "uniqueItems": true})", "uniqueItems"},
      {R"({"type": "array", "items": {}, "contains": {}})", "contains"},
      {R"({"type": "object", "dependentRequired": {}})", "dependentRequired"},
      {R"({"$dynamicRef": "#a"})", "$dynamicRef"},
      {R"({"$ref": "#/$defs/a", "minLength": 1, "$defs": {"a": {"type": "string"}}})",
       "minLength is not supported with $ref"},
      {R"({"$ref": "#/$defs/a", "type": "string", "$defs": {"a": {"type": "string"}}})",
       "type is not supported with $ref"},
      {R"({"const": "a", "maxLength": 0})", "maxLength is not supported with const"},
      {R"({"enum": ["a"], "anyOf": [{}]})", "anyOf is not supported with enum"},
      {R"({"enum": ["a", 1], "type": "string"})", "type is not that of all values"},
      {R"({"const": "b", "enum": ["a"]})", "enum is without the value of const"},
      {R"({"const": [18446744073709551615]})", "takes for another"},
      {R"({"anyOf": [{"type": "string"}], "properties": {}})", "properties is not supported with anyOf"},
      {R"({"type": "string", "oneOf": [{"const": "a"}]})", "type is not supported with oneOf"},
      {R"({"oneOf": [{"type": "string"}, {"const": "a"}]})", "oneOf with overlapping"},
      {R"({"anyOf": []})", "anyOf is no list of schemas"},
      {R"({"allOf": [{"type": "string"}, {"const": "a"}]})", "allOf is not supported"},
      {R"({"anyOf": [{"minimum": 1}]})", "minimum is not supported with no type at \"/anyOf/0\""},
      {R"({"required": ["a"]})", "required is not supported with no type"},
      {R"({"type": "number", "multipleOf": 2})", "multipleOf"},
      {R"({"type": "number", "minimum": 0, "exclusiveMaximum": 0.0000001})", "too narrow"},
      {R"({"type": "number", "minimum": 9007199254740993})", "minimum is too large"},
      {R"({"type": "integer", "multipleOf": 3, "minimum": 0})", "ignoring multipleOf"},
      {R"({"type": "string", "maxLength": -1})", "maxLength is not in"},
      {R"({"type": "object", "minProperties": 4294967297})", "minProperties is not in"},
      {R"({"type": "string", "pattern": "a", "minLength": 2})", "with pattern"},
      {R"({"type": "string", "pattern": "a", "format": "uuid"})",
       "pattern is not supported with format \"uuid\""},
      {R"({"type": "string", "format": "date", "maxLength": 2})",
       "length is not supported with format \"date\""},
      {R"({"type": "string", "format": "email"})", "format \"email\""},
      {R"({"type": "string", "pattern": "(?=b)a"})", "pattern is not supported with a group"},
      {R"({"type": "object", "required": ["a"]})", "required is not supported for \"a\""},
      {R"({"properties": {"a": {}}, "additionalProperties": true})", "additionalProperties to false"},
      {R"({"properties": {"a": {}}, "unevaluatedProperties": {}})", "additionalProperties to false"},
      {R"({"properties": {"a": {}}, "patternProperties": {"b": {}}})", "patternProperties is not supported"},
      {R"({"type": "object", "patternProperties": {"b": {}, "c": {}}})", "several patterns"},
      {R"({"type": "object", "patternProperties": {"b": {}}, "propertyNames": {"minLength": 1}})",
       "propertyNames"},
      {R"({"type": "object", "propertyNames": {"minLength": 1}, "additionalProperties": false})",
       "propertyNames"},
      {R"({"type": "object", "propertyNames": {"enum": ["a", 1]}})", "schema of names"},
      {R"({"type": "object", "propertyNames": {}})", "schema of names"},
      {R"({"type": "object", "additionalProperties": true, "minProperties": 2})", "minProperties beyond 1"},
      {R"({"$ref": "https://example.com/a"})", "$ref is to nothing"},
      {R"({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {}, "a~1b": {}}})", "$ref is to nothing"},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}})",
       "leads back to itself"},
      {R"({"items": {"$id": "b", "type": "string"}})", "$id below the root"},
      {R"({"anyOf": [{"properties": {"title": {"type": "string"}}}, {"properties": {"title": {"type": "null"}}}]})",
       "takes for that at \"/anyOf/0\""},
      {R"({"enum": [)", "malformed JSON"},
      {R"({"type": "text"})", "type is no type"},
      {"[]", "no schema"}};
  for (const auto& [schema, what] : cases) ExpectRefused(Compiles(schema), what, schema);
}

TEST(JsonSchema, OfUsualModelsIsEnforced) {
  for (
      const char* const schema :
      {// pydantic
       R"({"$defs": {"Pet": {"properties": {"name": {"title": "Name", "type": "string", "minLength": 1, "maxLength": 30},
               "kind": {"enum": ["cat", "dog"], "title": "Kind", "type": "string"}}, "required": ["name", "kind"],
               "title": "Pet", "type": "object"}},
               "properties": {"pets": {"items": {"$ref": "#/$defs/Pet"}, "title": "Pets", "type": "array", "maxItems": 4},
               "best": {"anyOf": [{"$ref": "#/$defs/Pet"}, {"type": "null"}], "default": null},
               "other": {"$ref": "#/$defs/Pet", "description": "another"}, "one": {"allOf": [{"$ref": "#/$defs/Pet"}]},
               "tags": {"additionalProperties": {"type": "integer"}, "title": "Tags", "type": "object"},
               "age": {"exclusiveMinimum": 0, "maximum": 150, "title": "Age", "type": "integer"},
               "height": {"anyOf": [{"minimum": 0.5, "type": "number"}, {"type": "null"}], "title": "Height"},
               "v": {"const": "a", "enum": ["a"], "title": "V", "type": "string"}, "when": {"format": "date-time", "type": "string"},
               "id": {"format": "uuid", "type": "string"}, "code": {"pattern": "^[A-Z]{2}\\d+$", "type": "string"}},
               "required": ["pets", "age"], "title": "Owner", "type": "object"})",
       // zod
       R"({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {
               "u": {"anyOf": [{"type": "string", "const": "a"}, {"type": "number", "const": 1}]},
               "n": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
               "r": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
               "t": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}], "items": false}},
               "required": ["u"], "additionalProperties": false})",
       R"({"type": ["string", "null"], "maxLength": 3})",
       R"({"properties": {"a": {"$ref": "#"}}, "type": "object"})",
       R"({"oneOf": [{"type": "string"}, {"const": 1}], "discriminator": {"propertyName": "x"}})",
       R"({"type": "object", "properties": {"title": {"type": "string"}}, "x-order": ["title"], "required": ["title"]})",
       R"({"type": "object", "patternProperties": {"^[a-c]$": {}}})",
       R"({"$id": "a", "uniqueItems": false, "type": "null"})",
       R"({"type": "object", "propertyNames": {"$ref": "#/$defs/a"}, "$defs": {"a": {"enum": ["a", "b"]}}})",
       R"({"type": "object", "additionalProperties": true})", "{}", "true"}) {
    const absl::Status status = Compiles(schema);
    EXPECT_TRUE(status.ok()) << status << "\n" << schema;
  }
}

TEST(JsonSchema, IsRefusedIfItIsNestedTooDeep) {
  const auto nested = [](int levels) {
    std::string schema = "{}";
    for (int i = 1; i < levels; ++i) schema = absl::StrCat(R"({"items":)", schema, "}");
    return schema;
  };
  EXPECT_TRUE(CheckJsonSchema(nested(kMaxJsonNesting)).ok());
  ExpectRefused(CheckJsonSchema(nested(kMaxJsonNesting + 2)), "nested too deep", "");
  ExpectRefused(CheckJsonSchema(std::string(30000, '[')), "nested too deep", "");
}

TEST(JsonPattern, ThatMeansTheSameToXGrammarIsAllowed) {
  for (const char* const pattern :
       {"", "^$", "a", "^\\d{3}-\\d{4}$", "^[a-z0-9_.-]+(-[^\"]+)*$", "^(foo|bar)s?$", "^.{1,128}$",
        "x|\\w+?", "^\\u00e9\\x41\\/$", "^(?:ab){2,3}[\\s\\]]$"}) {
    EXPECT_TRUE(CheckJsonPattern(pattern).ok()) << pattern << CheckJsonPattern(pattern);
  }
  for (const char* const pattern :
       {"a$b",     "(^a)",   "(?i)a",       "(?<n>a)", "(?!a)",      "a**",   "a{2}{3}", "a{",
        "a]",      "[]",     "[a",          "(a",      "a)",         "\\b",   "\\1",     "\\S",
        "\\p{L}",  "[^\\s]", "[[:alpha:]]", "\"",      "\\\\",       "\\n",   "[\"]",    "\xc3\xa9",
        "\\ud800", "a{129}", "(ab){2,}",    "(ab*)?",  "(a|b{1,2})", "[z-a]", "\\"}) {
    EXPECT_FALSE(CheckJsonPattern(pattern).ok()) << pattern;
  }
}

TEST(StructuralTag, ItsSchemasAreChecked) {
  const auto tag = [](const std::string& format) {
    return absl::StrCat(R"({"type": "structural_tag", "format": {"type": "tag", "begin": "<", "content": )",
                        format, R"(, "end": ">"}})");
  };
  const absl::Status status = Compiles(GrammarSyntax::kStructuralTag,
                                       tag(R"({"type": "json_schema", "json_schema": {"type": "string"}})"));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Compiles(GrammarSyntax::kStructuralTag,
                       tag(R"({"type": "json_schema", "json_schema": {"type": "string", "minLength": 1}})"))
                  .ok());
  for (const auto& [format, what] :
       {std::pair(R"({"type": "json_schema", "json_schema": {"type": "null", "not": {}}})",
                  "not is not supported"),
        std::pair(R"({"type": "sequence", "elements": [{"type": "any_text"},
            {"type": "json_schema", "json_schema": {"type": "string", "minLength": 1}}]})",
                  "beside free text"),
        std::pair(R"({"type": "json_schema", "json_schema": {}, "any_order": true})", "any_order")}) {
    ExpectRefused(Compiles(GrammarSyntax::kStructuralTag, tag(format)), what, format);
  }
}

TEST(Grammar, OfWhatXGrammarWarnsIsRefused) {
  ExpectRefused(Compiles(GrammarSyntax::kRegex, "a^b"), "middle", "");
  ExpectRefused(Compiles(GrammarSyntax::kRegex, "\\q"), "not recognized", "");
  EXPECT_TRUE(Compiles(GrammarSyntax::kRegex, "^a$").ok()) << "a warning is forgotten";
}

TEST(Grammar, MessagesAreOfOneShortLine) {
  const std::string hostile = absl::StrCat("\n\x01\t", std::string(20000, 'x'), "\n\xff");
  for (const auto& [syntax, text] :
       {std::pair(GrammarSyntax::kEbnf, absl::StrCat("root ::= ", hostile)),
        std::pair(GrammarSyntax::kEbnf, std::string("root ::= \"\xff")),
        std::pair(GrammarSyntax::kRegex, absl::StrCat("(", hostile)),
        std::pair(GrammarSyntax::kStructuralTag, hostile),
        std::pair(GrammarSyntax::kStructuralTag,
                  absl::StrCat(R"({"type": ")", std::string(20000, 'x'), "\"}")),
        std::pair(
            GrammarSyntax::kJsonSchema,
            absl::StrCat(R"({"properties": {"\n\u0001)", std::string(20000, 'y'), R"(": {"not": {}}}})"))}) {
    const std::string message(Compiles(syntax, text).message());
    EXPECT_THAT(message, ::testing::StartsWith("grammar: "));
    EXPECT_LT(message.size(), 500u);
    EXPECT_EQ(message.find(".cc"), std::string::npos) << message;
    for (const char c : message) EXPECT_FALSE(absl::ascii_iscntrl(static_cast<unsigned char>(c))) << message;
  }
}

}  // namespace
}  // namespace outrider
