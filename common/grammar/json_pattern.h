// The regular expressions of JSON Schema that XGrammar holds strings to.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace outrider {

// Whether `pattern` means to XGrammar what it means in ECMA-262 and every text that it then allows can be the
// inside of a JSON string as it is. If not: INVALID_ARGUMENT that says what there is in it. Allowed are
// characters, ".", classes, groups, alternatives, repetitions, and "^" and "$" at the ends. XGrammar matches
// all of a string where JSON Schema looks for a part, which is stricter.
absl::Status CheckJsonPattern(std::string_view pattern);

}  // namespace outrider
