// Tokenizer files write their split regex for Oniguruma; this writes it for PCRE2.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace outrider {

// A PCRE2 pattern (PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE) that matches what Oniguruma's `pattern` matches.
// The two differ in which characters \s, \d and \p{..} mean: PCRE2 counts U+180E as a space, and may know an
// older Unicode than Oniguruma, which has 16.0. Properties are therefore spelled out.
//
// INVALID_ARGUMENT, naming the construct, for what the two read differently and no known tokenizer uses:
// \w, \b and other letters after a backslash, classes in classes, properties other than general categories,
// options other than a group's (?i: ).
absl::StatusOr<std::string> PcreFromOniguruma(std::string_view pattern);

// What Rust's `regex` crate means by \w: Alphabetic, Mark, Decimal_Number, Connector_Punctuation,
// Join_Control. As a PCRE2 pattern for one character.
std::string RustWordCharacter();

}  // namespace outrider
