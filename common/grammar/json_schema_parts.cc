#include "common/grammar/json_schema_parts.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/grammar/json_schema.h"
#include "common/spec/status.h"
#include "common/text/json.h"

namespace outrider {
namespace {

// XGrammar takes two schemas for the same if they differ only in members with these names. It even overlooks
// them among properties and in constants.
constexpr const char* kUnseen[] = {"title",    "default",   "description", "examples", "deprecated",
                                   "readOnly", "writeOnly", "$comment",    "$schema"};

// How Identity reads a value: as XGrammar does, as a schema, as a map of names to schemas, or literally.
enum class Part : uint8_t { kAsXGrammar, kSchema, kMembers, kValue };
std::string Identity(const Json& json, Part part) {
  if (part == Part::kValue) return DumpJson(json);
  std::string text = json.is_array() ? "[" : "{";
  if (json.is_array()) {
    for (const Json& item : json) absl::StrAppend(&text, Identity(item, part), ",");
  } else if (json.is_object()) {
    for (const auto& [name, member] : json.items()) {
      if (part != Part::kMembers && IsAmong(name, kUnseen)) continue;
      Part inner = part == Part::kMembers ? Part::kSchema : part;
      if (part == Part::kSchema && (name == "properties" || name == "patternProperties"))
        inner = Part::kMembers;
      if (part == Part::kSchema && (name == "const" || name == "enum")) inner = Part::kValue;
      absl::StrAppend(&text, "\"", name, "\":", Identity(member, inner), ",");
    }
  } else {
    return DumpJson(json);
  }
  return text + (json.is_array() ? "]" : "}");
}

}  // namespace

std::string XGrammarIdentity(const Json& schema) { return Identity(schema, Part::kAsXGrammar); }
std::string SchemaIdentity(const Json& schema) { return Identity(schema, Part::kSchema); }

bool HasType(const Json& value, absl::string_view type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "number") return value.is_number();
  return value.is_number_integer();
}

std::vector<std::string> TypesOf(const Json& schema) {
  const auto type = schema.find("type");
  if (type == schema.end()) return {};
  std::vector<std::string> types;
  for (const Json& one : type->is_array() ? *type : Json::array({*type})) {
    if (one.is_string()) types.push_back(one.get<std::string>());
  }
  return types;
}

const Json* SchemaReferences::Target(const Json& reference) const {
  if (!reference.is_string()) return nullptr;
  const auto& uri = reference.get_ref<const std::string&>();
  if (uri == "#") return &root_;
  if (!uri.starts_with("#/") || uri.find_first_of("~%") != uri.npos) return nullptr;
  const Json* target = &root_;
  for (const absl::string_view part : absl::StrSplit(absl::string_view(uri).substr(2), '/')) {
    if (part.empty() || !target->is_object()) return nullptr;
    const auto next = target->find(std::string(part));
    if (next == target->end()) return nullptr;
    target = &*next;
  }
  return target;
}

bool SchemaReferences::IsSelfReferential(const Json& schema) {
  if (known_.contains(&schema) || !schema.is_object()) return false;
  if (!within_.insert(&schema).second) return true;
  if (schema.contains("$ref")) {
    const Json* const target = Target(schema["$ref"]);
    if (target != nullptr && IsSelfReferential(*target)) return true;
  }
  for (const char* const keyword : {"anyOf", "oneOf", "allOf"}) {
    if (!schema.contains(keyword)) continue;
    const Json& schemas = schema[keyword];
    if (std::any_of(schemas.begin(), schemas.end(), [&](const Json& one) { return IsSelfReferential(one); }))
      return true;
  }
  within_.erase(&schema);
  known_.insert(&schema);
  return false;
}

bool SchemaReferences::HasOnlyStrings(const Json& schema, int depth) const {
  if (depth == 0 || !schema.is_object()) return false;
  if (schema.contains("$ref")) {
    const Json* const target = Target(schema["$ref"]);
    return target != nullptr && HasOnlyStrings(*target, depth - 1);
  }
  if (schema.contains("const")) return schema["const"].is_string();
  for (const char* const keyword : {"enum", "anyOf", "oneOf", "allOf"}) {
    if (!schema.contains(keyword)) continue;
    return std::ranges::all_of(schema[keyword], [&](const Json& one) {
      return absl::string_view(keyword) == "enum" ? one.is_string() : HasOnlyStrings(one, depth - 1);
    });
  }
  return TypesOf(schema) == std::vector<std::string>{"string"};
}

absl::StatusOr<Json> ParseNested(const std::string& text) {
  if (MeasureJson(text).depth > kMaxJsonNesting)
    return FieldError("grammar", absl::StrCat("at most ", kMaxJsonNesting, " levels"),
                      "JSON that is nested too deep");
  absl::StatusOr<Json> json = ParseJson<Json>(text);
  if (!json.ok()) return FieldError("grammar", "JSON", "malformed JSON");
  return json;
}

}  // namespace outrider
