// Checks the regular expressions of a JSON Schema that XGrammar is to enforce.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace outrider {

// Whether `pattern` means the same to XGrammar as in ECMA-262, and every text that XGrammar allows for it can
// be in a JSON string without escapes. If not: INVALID_ARGUMENT that names the unsupported part. Supported
// are characters, ".", classes, groups, alternatives, repetitions, and "^" and "$" at the ends. XGrammar
// matches the whole string where JSON Schema searches for a part, which is stricter.
absl::Status CheckJsonPattern(std::string_view pattern);

}  // namespace outrider
