// What of XGrammar's structural tags is enforced.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace outrider {

// CheckJsonSchema for all schemas in a tag. Returns whether its texts have no control characters but line
// ends, for all that it says itself. If they may, strings of the schemas have no lengths: such characters
// could be in them.
absl::StatusOr<bool> CheckStructuralTag(const std::string& tag);

// Whether a text has a control character other than line ends. XGrammar allows these in strings that have a
// length, where JSON does not.
bool HasOtherControls(absl::string_view text);

}  // namespace outrider
