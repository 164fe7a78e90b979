// What is done to text before it is split: Unicode's composed form, and replacements.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/text/tokenizer_spec.h"

namespace outrider {

// Immutable and thread-safe.
class Normalizer {
 public:
  explicit Normalizer(std::vector<NormalizeStep> steps) : steps_(std::move(steps)) {}

  bool does_nothing() const { return steps_.empty(); }
  // Of valid UTF-8. Nothing becomes nothing.
  std::string Normalize(std::string_view text) const;

 private:
  const std::vector<NormalizeStep> steps_;
};

}  // namespace outrider
