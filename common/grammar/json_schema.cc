#include "common/grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/grammar/json_pattern.h"
#include "common/grammar/json_schema_parts.h"
#include "common/grammar/xgrammar_log.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

using Words = std::set<std::string, std::less<>>;

// The keywords that XGrammar reads for a schema of each type.
const std::map<std::string, Words, std::less<>>& AssertionsOf() {
  static const auto* const assertions = new std::map<std::string, Words, std::less<>>{
      {"string", {"pattern", "minLength", "maxLength"}},
      {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
      {"array", {"items", "prefixItems", "unevaluatedItems", "minItems", "maxItems"}},
      {"object",
       {"properties", "required", "patternProperties", "propertyNames", "additionalProperties",
        "unevaluatedProperties", "minProperties", "maxProperties"}}};
  return *assertions;
}
// XGrammar looks at the first of these that a schema has, and at assertions beside it only if it is "type".
constexpr const char* kMainKeywords[] = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf", "type"};
// XGrammar ignores these keywords, or takes them for limits on all items.
constexpr const char* kIgnored[] = {"not",
                                    "if",
                                    "then",
                                    "else",
                                    "contains",
                                    "minContains",
                                    "maxContains",
                                    "dependentRequired",
                                    "dependencies",
                                    "$dynamicRef",
                                    "$recursiveRef",
                                    "dependentSchemas",
                                    "additionalItems"};
constexpr const char* kTypes[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
// Formats for which XGrammar has a regular expression, and those whose texts may be malformed JSON.
constexpr const char* kFormats[] = {"date",     "time", "date-time", "duration",      "ipv4",        "ipv6",
                                    "hostname", "uuid", "uri",       "uri-reference", "uri-template"};
constexpr const char* kMalformedFormats[] = {"email", "json-pointer", "relative-json-pointer"};
// The most properties of an object that counts them. XGrammar has a rule for each property and each count.
constexpr size_t kMaxCountedProperties = 64;
// The limit of bounds. XGrammar holds numbers as doubles, and from here on takes some for others.
constexpr double kMaxExact = 9007199254740992;
// The least width of a range. Between bounds XGrammar writes six digits after the point, and if there is no
// such number, an empty text.
constexpr double kLeastRange = 1e-5;

class SchemaChecker {
 public:
  SchemaChecker(const Json& root, bool lengths) : root_(root), references_(root), lengths_(lengths) {}

  absl::Status Check() { return Schema(root_, "", /*is_name=*/false); }

 private:
  static absl::Status Refuse(const std::string& at, absl::string_view problem) {
    return FieldError("grammar", "JSON Schema that is enforced",
                      OneLine(absl::StrCat(problem, " at \"", at, "\"")));
  }

  // Checks the schema at the pointer `at`. With `is_name` it is for names of properties, else for values.
  absl::Status Schema(const Json& schema, const std::string& at, bool is_name) {
    if (schema.is_boolean()) return absl::OkStatus();
    if (!schema.is_object()) return Refuse(at, "no schema");
    for (const char* const keyword : kIgnored) {
      if (schema.contains(keyword)) return Refuse(at, absl::StrCat(keyword, " is not supported"));
    }
    if (schema.value("uniqueItems", Json(false)) != false) return Refuse(at, "uniqueItems is not supported");
    if (schema.contains("$id") && &schema != &root_) return Refuse(at, "$id below the root is not supported");
    OUTRIDER_TRY(IsDistinct(schema, at, is_name));
    for (const char* const keyword : kMainKeywords) {
      if (schema.contains(keyword)) return CheckMainKeyword(keyword, schema, at);
    }
    if (is_name) return String(schema, at);
    if (schema.contains("properties") || schema.contains("additionalProperties") ||
        schema.contains("unevaluatedProperties")) {
      return Object(schema, at);
    }
    if (schema.contains("items") || schema.contains("prefixItems") || schema.contains("unevaluatedItems")) {
      return Array(schema, at);
    }
    return NoAssertionBeside("no type", schema, at);
  }

  absl::Status IsDistinct(const Json& schema, const std::string& at, bool is_name) {
    const Seen seen{
        at, absl::StrCat(is_name && !schema.contains("type") ? "name" : "value", SchemaIdentity(schema))};
    const auto [other, is_new] = seen_.try_emplace(XGrammarIdentity(schema), seen);
    if (is_new || other->second.identity == seen.identity) return absl::OkStatus();
    return Refuse(at, absl::StrCat("a schema that XGrammar takes for that at \"", other->second.at,
                                   "\" (it overlooks members named as annotations, as \"title\")"));
  }

  absl::Status NoAssertionBeside(absl::string_view what, const Json& schema, const std::string& at) {
    for (const auto& [type, keywords] : AssertionsOf()) {
      for (const std::string& keyword : keywords) {
        if (schema.contains(keyword))
          return Refuse(at, absl::StrCat(keyword, " is not supported with ", what));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckMainKeyword(const std::string& keyword, const Json& schema, const std::string& at) {
    if (keyword == "type") return Types(schema, at);
    OUTRIDER_TRY(NoAssertionBeside(keyword, schema, at));
    const bool is_finite = keyword == "const" || keyword == "enum";
    for (const char* const other : kMainKeywords) {
      if (other == keyword || !schema.contains(other)) continue;
      if (is_finite && absl::string_view(other) == "type") continue;
      if (keyword == "const" && absl::string_view(other) == "enum") continue;
      return Refuse(at, absl::StrCat(other, " is not supported with ", keyword));
    }
    if (is_finite) return Values(schema, at);
    const Json& value = schema.at(keyword);
    if (keyword == "$ref") return Reference(value, at);
    if (!value.is_array() || value.empty())
      return Refuse(at, absl::StrCat(keyword, " is no list of schemas"));
    if (keyword == "allOf" && value.size() != 1)
      return Refuse(at, "allOf is not supported but with one schema");
    return All(value, absl::StrCat(at, "/", keyword));
  }

  absl::Status All(const Json& schemas, const std::string& at) {
    for (const auto& [name, schema] : schemas.items())
      OUTRIDER_TRY(Schema(schema, absl::StrCat(at, "/", name), false));
    return absl::OkStatus();
  }

  absl::Status Values(const Json& schema, const std::string& at) {
    const auto types = TypesOf(schema);
    const bool is_const = schema.contains("const");
    const Json* const list = schema.contains("enum") ? &schema["enum"] : nullptr;
    if (list != nullptr && (!list->is_array() || list->empty()))
      return Refuse(at, "enum is no list of values");
    const Json values = is_const ? Json::array({schema["const"]}) : *list;
    if (is_const && list != nullptr && std::find(list->begin(), list->end(), values[0]) == list->end())
      return Refuse(at, "enum is without the value of const");
    for (const Json& value : values) {
      const bool fits =
          std::ranges::any_of(types, [&](const std::string& type) { return HasType(value, type); });
      if (schema.contains("type") && !fits) return Refuse(at, "type is not that of all values");
      if (!IsExact(value)) return Refuse(at, "a number in const or enum that XGrammar takes for another");
    }
    return absl::OkStatus();
  }

  // Whether XGrammar, which holds numbers as int64 or double, writes the value as it is.
  static bool IsExact(const Json& value) {
    if (value.is_structured()) return std::all_of(value.begin(), value.end(), IsExact);
    return !value.is_number_unsigned() || value.get<uint64_t>() <= std::numeric_limits<int64_t>::max();
  }

  absl::Status Reference(const Json& reference, const std::string& at) {
    const Json* const target = references_.Target(reference);
    if (target == nullptr) return Refuse(at, "$ref is to nothing in this schema, or has escapes");
    const auto& uri = reference.get_ref<const std::string&>();
    if (!followed_.insert(uri).second) return absl::OkStatus();
    if (references_.IsSelfReferential(*target))
      return Refuse(at, "$ref leads back to itself with no value in between");
    if (target == &root_) return absl::OkStatus();
    if (++nesting_ > kMaxJsonNesting) return Refuse(at, "references are nested too deep");
    OUTRIDER_TRY(Schema(*target, uri.substr(1), false));
    --nesting_;
    return absl::OkStatus();
  }

  absl::Status Types(const Json& schema, const std::string& at) {
    const auto types = TypesOf(schema);
    const Json& type = schema["type"];
    if (types.empty() || types.size() != (type.is_array() ? type.size() : 1))
      return Refuse(at, "type is no type");
    for (const std::string& one : types) {
      if (!IsAmong(one, kTypes)) return Refuse(at, "type is no type");
      if (type.is_array()) {
        Json copy = schema;
        copy["type"] = one;
        OUTRIDER_TRY(IsDistinct(copy, at, false));
      }
      if (one == "string") OUTRIDER_TRY(String(schema, at));
      if (one == "number" || one == "integer") OUTRIDER_TRY(Number(schema, at, one == "integer"));
      if (one == "array") OUTRIDER_TRY(Array(schema, at));
      if (one == "object") OUTRIDER_TRY(Object(schema, at));
    }
    return absl::OkStatus();
  }

  absl::Status String(const Json& schema, const std::string& at) {
    OUTRIDER_TRY(Counts({"minLength", "maxLength"}, schema, at));
    const bool has_length = schema.contains("minLength") || schema.contains("maxLength");
    if (has_length && !lengths_)
      return Refuse(at, "minLength and maxLength are not supported beside free text");
    const Json format = schema.value("format", Json(""));
    if (!format.is_string()) return Refuse(at, "format is no string");
    const auto& name = format.get_ref<const std::string&>();
    if (IsAmong(name, kMalformedFormats))
      return Refuse(at, absl::StrCat("format \"", name, "\" is not supported"));
    const bool has_pattern = schema.contains("pattern");
    if (IsAmong(name, kFormats) && (has_pattern || has_length)) {
      return Refuse(at, absl::StrCat(has_pattern ? "pattern" : "length", " is not supported with format \"",
                                     name, "\""));
    }
    if (!has_pattern) return absl::OkStatus();
    if (has_length) return Refuse(at, "minLength and maxLength are not supported with pattern");
    if (!schema["pattern"].is_string()) return Refuse(at, "pattern is no string");
    return Pattern(schema["pattern"].get<std::string>(), at);
  }

  static absl::Status Pattern(const std::string& pattern, const std::string& at) {
    const absl::Status status = CheckJsonPattern(pattern);
    return status.ok() ? status
                       : Refuse(at, absl::StrCat("pattern is not supported with ", status.message()));
  }

  static absl::Status Number(const Json& schema, const std::string& at, bool is_integer) {
    if (schema.contains("multipleOf") && !is_integer)
      return Refuse(at, "multipleOf is not supported but for integers");
    double least = -std::numeric_limits<double>::infinity(), most = -least;
    for (const char* const bound : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
      const auto value = schema.find(bound);
      if (value == schema.end()) continue;
      if (!value->is_number()) return Refuse(at, absl::StrCat(bound, " is no number"));
      if (!is_integer && std::abs(value->get<double>()) >= kMaxExact)
        return Refuse(at, absl::StrCat(bound, " is too large"));
      if (std::string_view(bound).ends_with("inimum")) {
        least = std::max(least, value->get<double>());
      } else {
        most = std::min(most, value->get<double>());
      }
    }
    if (!is_integer && most - least < kLeastRange) return Refuse(at, "a range of numbers is too narrow");
    return absl::OkStatus();
  }

  absl::Status Array(const Json& schema, const std::string& at) {
    OUTRIDER_TRY(Counts({"minItems", "maxItems"}, schema, at));
    if (const auto prefix = schema.find("prefixItems"); prefix != schema.end()) {
      if (!prefix->is_array()) return Refuse(at, "prefixItems is no list of schemas");
      OUTRIDER_TRY(All(*prefix, absl::StrCat(at, "/prefixItems")));
    }
    return FirstOf({"items", "unevaluatedItems"}, schema, at);
  }

  // Checks the first of two keywords that the schema has. It leaves nothing for the second to apply to.
  absl::Status FirstOf(std::initializer_list<const char*> keywords, const Json& schema,
                       const std::string& at) {
    for (const char* const keyword : keywords) {
      if (schema.contains(keyword)) return Schema(schema[keyword], absl::StrCat(at, "/", keyword), false);
    }
    return absl::OkStatus();
  }

  absl::Status Object(const Json& schema, const std::string& at) {
    OUTRIDER_TRY(Counts({"minProperties", "maxProperties"}, schema, at));
    const Json properties = schema.value("properties", Json::object());
    const Json patterns = schema.value("patternProperties", Json::object());
    if (!properties.is_object()) return Refuse(at, "properties is no object");
    if (!patterns.is_object()) return Refuse(at, "patternProperties is no object");
    const Json required = schema.value("required", Json::array());
    if (!required.is_array()) return Refuse(at, "required is no list of names");
    for (const Json& name : required) {
      if (!name.is_string()) return Refuse(at, "required is no list of names");
      if (!properties.contains(name.get_ref<const std::string&>())) {
        return Refuse(at, absl::StrCat("required is not supported for \"", name.get<std::string>(),
                                       "\", which properties lacks"));
      }
    }
    OUTRIDER_TRY(All(properties, absl::StrCat(at, "/properties")));
    OUTRIDER_TRY(FirstOf({"additionalProperties", "unevaluatedProperties"}, schema, at));
    const bool others = HasOthers(schema);
    if (!properties.empty()) {
      for (const char* const keyword : {"patternProperties", "propertyNames"}) {
        if (schema.contains(keyword))
          return Refuse(at, absl::StrCat(keyword, " is not supported with properties"));
      }
      // Written "\u0061", a property "a" is another property to XGrammar.
      if (others)
        return Refuse(
            at, "other properties are not supported with properties: set additionalProperties to false");
      if (Limit("minProperties", schema) > 0 || schema.contains("maxProperties")) {
        if (properties.size() > kMaxCountedProperties)
          return Refuse(at, "minProperties and maxProperties with too many properties");
      }
      return absl::OkStatus();
    }
    // A text may repeat a name, which is then one property.
    if (Limit("minProperties", schema) > 1)
      return Refuse(at, "minProperties beyond 1 is not supported for any names");
    if (patterns.empty()) return schema.contains("propertyNames") ? Names(schema, at) : absl::OkStatus();
    if (patterns.size() > 1) return Refuse(at, "patternProperties is not supported with several patterns");
    if (schema.contains("propertyNames"))
      return Refuse(at, "propertyNames is not supported with patternProperties");
    OUTRIDER_TRY(Pattern(patterns.begin().key(), absl::StrCat(at, "/patternProperties")));
    return All(patterns, absl::StrCat(at, "/patternProperties"));
  }

  // Whether strict mode allows properties other than the named ones.
  static bool HasOthers(const Json& schema) {
    for (const char* const keyword : {"additionalProperties", "unevaluatedProperties"}) {
      if (schema.contains(keyword)) return schema[keyword] != false;
    }
    return false;
  }

  absl::Status Names(const Json& schema, const std::string& at) {
    const std::string names_at = absl::StrCat(at, "/propertyNames");
    const bool is_closed =
        (schema.contains("additionalProperties") || schema.contains("unevaluatedProperties")) &&
        !HasOthers(schema);
    if (is_closed) return Refuse(at, "propertyNames is not supported where there are no properties");
    const Json& names = schema["propertyNames"];
    if (!names.is_object()) return Refuse(names_at, "no schema of names");
    const bool has_main_keyword =
        std::ranges::any_of(kMainKeywords, [&](const char* keyword) { return names.contains(keyword); });
    const bool has_other =
        std::ranges::any_of(std::initializer_list<const char*>{"pattern", "minLength", "maxLength", "format"},
                            [&](const char* keyword) { return names.contains(keyword); });
    if (has_main_keyword ? !references_.HasOnlyStrings(names, kMaxJsonNesting) : !has_other) {
      return Refuse(names_at, "a schema of names that XGrammar would write other values for");
    }
    return Schema(names, names_at, /*is_name=*/true);
  }

  // The value of a keyword that Counts has checked.
  static int64_t Limit(const char* keyword, const Json& schema) { return schema.value(keyword, int64_t{0}); }

  static absl::Status Counts(std::initializer_list<const char*> keywords, const Json& schema,
                             const std::string& at) {
    for (const char* const keyword : keywords) {
      const auto count = schema.find(keyword);
      if (count == schema.end()) continue;
      if (!count->is_number_unsigned() || count->get<uint64_t>() > std::numeric_limits<int32_t>::max()) {
        return Refuse(at, absl::StrCat(keyword, " is not in [0, 2147483647]"));
      }
    }
    return absl::OkStatus();
  }

  // The pointer of a schema, and its SchemaIdentity.
  struct Seen {
    std::string at, identity;
  };

  const Json& root_;
  SchemaReferences references_;
  const bool lengths_;
  std::map<std::string, Seen> seen_;  // by XGrammarIdentity
  Words followed_;                    // the references that were checked
  int nesting_ = 0;                   // the number of references around the current schema
};

}  // namespace

absl::Status CheckJsonSchema(const std::string& schema, bool lengths) {
  const Json root = OUTRIDER_TRY(ParseNested(schema));
  return SchemaChecker(root, lengths).Check();
}

}  // namespace outrider
