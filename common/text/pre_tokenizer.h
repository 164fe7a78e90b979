// Splits text into words, the units that BPE encodes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/text/regex.h"
#include "common/text/tokenizer_spec.h"

namespace outrider {

// Immutable and thread-safe.
class PreTokenizer {
 public:
  // INVALID_ARGUMENT for a pattern that is not supported.
  static absl::StatusOr<std::unique_ptr<const PreTokenizer>> Create(const std::vector<SplitStep>& steps);

  // Calls `word` for each word of `text` (valid UTF-8), in order. No word is empty. The argument is valid
  // during the call only. `at_start` tells whether `text` begins the whole text. RESOURCE_EXHAUSTED, before
  // any call, for the same patterns as Regex::ForEachMatch.
  absl::Status Split(std::string_view text, bool at_start,
                     absl::FunctionRef<void(std::string_view)> word) const;

 private:
  struct Step {
    SplitStep spec;
    std::optional<Regex> regex;  // nullopt for kPrefixSpace and kStartSpace
  };

  explicit PreTokenizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  std::vector<Step> steps_;
};

// Immutable and thread-safe.
class Normalizer {
 public:
  explicit Normalizer(std::vector<NormalizeStep> steps) : steps_(std::move(steps)) {}

  bool does_nothing() const { return steps_.empty(); }
  // `text` is valid UTF-8. Empty text stays empty.
  std::string Normalize(std::string_view text) const;

 private:
  const std::vector<NormalizeStep> steps_;
};

}  // namespace outrider
