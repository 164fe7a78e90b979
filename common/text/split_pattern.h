// Translates the split regex of a tokenizer file from Oniguruma's syntax to PCRE2's.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace outrider {

// Returns a PCRE2 pattern (PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE) that matches what `pattern` matches in
// Oniguruma. The two disagree on the characters of \s, \d and \p{..}: PCRE2 counts U+180E as a space, and may
// know an older Unicode than Oniguruma's 16.0. Such sets are therefore spelled out.
//
// INVALID_ARGUMENT, naming the construct, for what the two read differently and no known tokenizer uses: \w,
// \b and other letters after a backslash, nested classes, properties other than general categories, options
// other than a group's (?i: ).
absl::StatusOr<std::string> PcreFromOniguruma(std::string_view pattern);

// A PCRE2 pattern for one character of \w in Rust's `regex` crate: Alphabetic, Mark, Decimal_Number,
// Connector_Punctuation, Join_Control.
std::string RustWordCharacter();

}  // namespace outrider
