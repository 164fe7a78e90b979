// Cuts text into words, the pieces that BPE works on.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/text/regex.h"
#include "common/text/tokenizer_spec.h"

namespace outrider {

// Immutable; may be used from any threads.
class PreTokenizer {
 public:
  // INVALID_ARGUMENT for a pattern that is not understood.
  static absl::StatusOr<std::unique_ptr<const PreTokenizer>> Create(const std::vector<SplitStep>& steps);

  // Calls `word` for each word of `text` (valid UTF-8), in order. None is empty. The argument is valid
  // during the call only.
  void Split(std::string_view text, absl::FunctionRef<void(std::string_view)> word) const;

 private:
  struct Step {
    SplitStep spec;
    std::optional<Regex> regex;  // None for kPrefixSpace.
  };

  explicit PreTokenizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  std::vector<Step> steps_;
};

}  // namespace outrider
