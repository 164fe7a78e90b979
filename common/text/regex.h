// A compiled PCRE2 pattern over UTF-8, run by PCRE2's JIT where it is available.
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
  struct Code;  // Hides pcre2_code from this header.

  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}

  std::shared_ptr<const Code> code_;
};

}  // namespace outrider
