// What a search for the likeliest text needs of a row of logits.
#pragma once

#include "absl/status/statusor.h"
#include "common/engine/model.h"
#include "common/engine/work_item.h"

namespace outrider {

// Most candidates that can be asked for after a token.
inline constexpr int kMaxCandidates = 256;

// Of each row the `n` most probable tokens, best first, ties to the lowest id, with the logarithms of their
// probabilities before any controls. INTERNAL if a logit is not finite.
absl::StatusOr<std::vector<CandidateRow>> Candidates(const LogitsView& logits, int n);

}  // namespace outrider
