// Parses JSON from untrusted sources, and writes JSON that any parser can read. Compiled once, since code
// that uses the library's own parser and writer takes seconds to compile.
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
  size_t values = 0;  // strings (names too), lists and objects: the values that take memory of their own
};

// Measures the text, which need not be JSON, at least up to its first error. Takes linear time. (The
// library's callback that discards values takes longer: at each value it looks through all earlier ones.)
JsonSize MeasureJson(std::string_view json);

// Below, `Json` is nlohmann::json or nlohmann::ordered_json.

// INVALID_ARGUMENT, in one line, for text that is not JSON or nests too deep.
template <typename Json = nlohmann::json>
absl::StatusOr<Json> ParseJson(std::string_view text);

// Writes `json` on one line. Invalid UTF-8, such as a token that is part of a character, becomes U+FFFD.
template <typename Json>
std::string DumpJson(const Json& json);

// The object in the file at `path`. NOT_FOUND if the file is empty or cannot be read, INVALID_ARGUMENT if it
// has no object; both messages name the file.
template <typename Json = nlohmann::json>
absl::StatusOr<Json> JsonObjectIn(const std::string& path);

// The same, but an empty object if there is no such file.
template <typename Json = nlohmann::json>
absl::StatusOr<Json> JsonObjectIfThere(const std::string& path);

}  // namespace outrider
