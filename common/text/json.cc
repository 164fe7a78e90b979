#include "common/text/json.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/spec/status.h"
#include "common/text/strings.h"

namespace outrider {

JsonSize MeasureJson(std::string_view json) {
  JsonSize size;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
      ++size.values;
    } else if (c == '[' || c == '{') {
      size.depth = std::max(size.depth, ++depth);
      ++size.values;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return size;
}

template <typename Json>
absl::StatusOr<Json> ParseJson(std::string_view text) {
  if (MeasureJson(text).depth > kMaxJsonDepth)
    return Invalid("JSON that nests more than ", kMaxJsonDepth, " deep");
  try {
    return Json::parse(text);
  } catch (const typename Json::parse_error& error) {
    return Invalid("not JSON: byte ", error.byte);
  } catch (const typename Json::exception&) {  // the parser throws no other
    return Invalid("JSON with a number that no double can hold");
  }
}

template <typename Json>
std::string DumpJson(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <typename Json>
absl::StatusOr<Json> JsonObjectIn(const std::string& path) {
  const std::optional<std::string> text = ReadFile(path);
  if (!text) return absl::NotFoundError(absl::StrCat(path, ": cannot be read, or is empty"));
  absl::StatusOr<Json> json = ParseJson<Json>(*text);
  if (!json.ok()) return Invalid(path, ": ", json.status().message());
  if (!json->is_object()) return Invalid(path, ": not a JSON object");
  return json;
}

template <typename Json>
absl::StatusOr<Json> JsonObjectIfThere(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return Json::object();
  return JsonObjectIn<Json>(path);
}

template absl::StatusOr<nlohmann::json> ParseJson(std::string_view);
template absl::StatusOr<nlohmann::ordered_json> ParseJson(std::string_view);
template std::string DumpJson(const nlohmann::json&);
template std::string DumpJson(const nlohmann::ordered_json&);
template absl::StatusOr<nlohmann::json> JsonObjectIn(const std::string&);
template absl::StatusOr<nlohmann::ordered_json> JsonObjectIn(const std::string&);
template absl::StatusOr<nlohmann::json> JsonObjectIfThere(const std::string&);
template absl::StatusOr<nlohmann::ordered_json> JsonObjectIfThere(const std::string&);

}  // namespace outrider
