// A compiled PCRE2 pattern over UTF-8, run by PCRE2's JIT if it is available. Also translates the patterns of
// a tokenizer file to PCRE2's syntax.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace outrider {

// Immutable and thread-safe.
class Regex {
 public:
  enum class Syntax { kPattern, kLiteral };

  // INVALID_ARGUMENT, with PCRE2's message, for a pattern that PCRE2 rejects. `^` and `$` match at line
  // boundaries, as in Oniguruma.
  static absl::StatusOr<Regex> Compile(const std::string& pattern, Syntax syntax);

  // Calls `match(begin, end)` for every match in `text`, left to right, without overlaps. Empty matches are
  // included, except directly after another match. `text` must be valid UTF-8. RESOURCE_EXHAUSTED, perhaps
  // after some calls, for a pattern that backtracks far more often than there are characters. Each time it
  // may read the word again, so a pattern can still take time quadratic in the longest word.
  absl::Status ForEachMatch(std::string_view text,
                            absl::FunctionRef<void(size_t begin, size_t end)> match) const;

 private:
  explicit Regex(std::shared_ptr<const void> code) : code_(std::move(code)) {}

  std::shared_ptr<const void> code_;  // a pcre2_code
};

// Returns a PCRE2 pattern (PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE) that matches what `pattern` matches in
// Oniguruma. The two disagree on the characters of \s, \d and \p{..}: PCRE2 counts U+180E as a space, and may
// know an older Unicode than Oniguruma's 16.0. Such sets are therefore spelled out.
//
// INVALID_ARGUMENT, naming the construct, for constructs that the two read differently and no known tokenizer
// uses: \w, \b and other letters after a backslash, nested classes, properties other than general categories,
// options other than a group's (?i: ).
absl::StatusOr<std::string> PcreFromOniguruma(std::string_view pattern);

// A PCRE2 pattern for one character of \w in Rust's `regex` crate: Alphabetic, Mark, Decimal_Number,
// Connector_Punctuation, Join_Control.
std::string RustWordCharacter();

}  // namespace outrider
