// Parses JSON from untrusted sources, and writes JSON that any parser can read. Compiled once: where the
// library's own parser and writer are used they take seconds to compile.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

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
JsonSize MeasureJson(std::string_view json);

// In all that follows `Json` is nlohmann::json or nlohmann::ordered_json.

// INVALID_ARGUMENT, in one line, for text that is not JSON or nests too deep.
template <typename Json = nlohmann::json>
absl::StatusOr<Json> ParseJson(std::string_view text);

// `json` on one line. Invalid UTF-8, such as the part of a character that a token may be, becomes U+FFFD.
template <typename Json>
std::string DumpJson(const Json& json);

// The object in the file at `path`. NOT_FOUND if the file cannot be read, INVALID_ARGUMENT if it has no
// object; both name it.
template <typename Json = nlohmann::json>
absl::StatusOr<Json> JsonObjectIn(const std::string& path);

// The same, and an empty object where there is no file.
template <typename Json = nlohmann::json>
absl::StatusOr<Json> JsonObjectIfThere(const std::string& path);

}  // namespace outrider
