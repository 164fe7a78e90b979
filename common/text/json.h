// Parses JSON from untrusted sources, and writes JSON that any parser can read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/spec/status.h"
#include "common/text/strings.h"

namespace outrider {

// Deeper than any file of a model. The library parses and frees a value of any depth, but copies and writes
// it recursively, which can exhaust the stack.
inline constexpr int kMaxJsonDepth = 64;

struct JsonSize {
  int depth = 0;      // to which lists and objects nest
  size_t values = 0;  // texts (names too), lists and objects: what takes memory beyond its place
};

// Of the text up to its first error, at least; it may be no JSON at all. In the time that reading it takes: a
// callback of the library that discards values looks through all that came before at each.
inline JsonSize MeasureJson(std::string_view json) {
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

// INVALID_ARGUMENT, in one line, for text that is not JSON or nests too deep. `Json` is nlohmann::json or
// nlohmann::ordered_json.
template <typename Json = nlohmann::json>
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

// `json` on one line. Invalid UTF-8, such as the part of a character that a token may be, becomes U+FFFD.
template <typename Json>
std::string DumpJson(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The object in the file at `path`. `Json` is nlohmann::json or nlohmann::ordered_json. NOT_FOUND if the file
// cannot be read, INVALID_ARGUMENT if it has no object; both name it.
template <typename Json = nlohmann::json>
absl::StatusOr<Json> JsonObjectIn(const std::string& path) {
  const std::optional<std::string> text = ReadFile(path);
  if (!text) return absl::NotFoundError(absl::StrCat(path, ": cannot be read, or is empty"));
  absl::StatusOr<Json> json = ParseJson<Json>(*text);
  if (!json.ok()) return Invalid(path, ": ", json.status().message());
  if (!json->is_object()) return Invalid(path, ": not a JSON object");
  return json;
}

// The same, and an empty object where there is no file.
template <typename Json = nlohmann::json>
absl::StatusOr<Json> JsonObjectIfThere(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return Json::object();
  return JsonObjectIn<Json>(path);
}

}  // namespace outrider
