// The part of XGrammar's structural tags that it enforces.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace outrider {

// Runs CheckJsonSchema on all schemas in a tag. Returns whether the tag's own texts have no control
// characters but line ends. If they may have others, the schemas must not limit the lengths of strings:
// XGrammar would allow such characters in these strings.
absl::StatusOr<bool> CheckStructuralTag(const std::string& tag);

// Whether a text has a control character other than line ends. XGrammar allows them in strings that have a
// length, where JSON does not.
bool HasNonJsonControls(absl::string_view text);

}  // namespace outrider
