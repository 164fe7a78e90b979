// A compiled PCRE2 pattern over UTF-8, run by PCRE2's JIT where the machine has one.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace outrider {

// Immutable: may be used from any threads at the same time.
class Regex {
 public:
  enum class Syntax { kPattern, kLiteral };

  // INVALID_ARGUMENT with PCRE2's message for a pattern that it does not understand. `^` and `$` match at
  // lines, as in Oniguruma.
  static absl::StatusOr<Regex> Compile(const std::string& pattern, Syntax syntax);

  // Calls `match(begin, end)` for every match in `text`, from left to right, none overlapping; empty matches
  // included, but not right after another match. `text` must be valid UTF-8. A pattern can ask for more
  // memory than there is (nested repeats over megabytes); the rest of the text then counts as having no
  // match.
  void ForEachMatch(std::string_view text, absl::FunctionRef<void(size_t begin, size_t end)> match) const;

 private:
  struct Code;  // pcre2_code, which a public header need not see.

  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}

  std::shared_ptr<const Code> code_;
};

}  // namespace outrider
