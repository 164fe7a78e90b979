#include "common/grammar/structural_tag.h"

#include <algorithm>
#include <string>

#include "common/grammar/json_schema.h"
#include "common/grammar/json_schema_parts.h"
#include "common/spec/status.h"
#include "common/text/json.h"

namespace outrider {
namespace {

// Whether a part of a tag may allow text that JSON does not: control characters.
bool MayHaveNonJsonControls(const Json& part) {
  constexpr const char* kJsonTypes[] = {
      "structural_tag", "const_string", "json_schema", "sequence", "or", "tag", "tags_with_separator"};
  if (part.is_string()) return HasNonJsonControls(part.get_ref<const std::string&>());
  if (part.is_object()) {
    const Json type = part.value("type", Json());
    if (type == "json_schema") return false;
    if (type.is_string() && !IsAmong(type.get_ref<const std::string&>(), kJsonTypes)) return true;
  }
  return part.is_structured() && std::ranges::any_of(part, MayHaveNonJsonControls);
}

absl::Status CheckTagPart(const Json& part, bool lengths) {
  if (!part.is_structured()) return absl::OkStatus();
  if (part.is_object() && part.contains("json_schema")) {
    // With any_order, XGrammar counts properties but does not check which ones they are.
    if (part.value("any_order", Json(false)) != false)
      return FieldError("grammar", "false", "any_order is not supported");
    return CheckJsonSchema(DumpJson(part["json_schema"]), lengths);
  }
  for (const Json& inner : part) OUTRIDER_TRY(CheckTagPart(inner, lengths));
  return absl::OkStatus();
}

}  // namespace

bool HasNonJsonControls(absl::string_view text) {
  return std::ranges::any_of(
      text, [](char c) { return static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\r'; });
}

absl::StatusOr<bool> CheckStructuralTag(const std::string& tag) {
  const Json root = OUTRIDER_TRY(ParseNested(tag));
  const bool is_json = !MayHaveNonJsonControls(root);
  OUTRIDER_TRY(CheckTagPart(root, /*lengths=*/is_json));
  return is_json;
}

}  // namespace outrider
