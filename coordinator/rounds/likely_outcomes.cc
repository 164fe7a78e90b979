#include "coordinator/rounds/likely_outcomes.h"

#include <algorithm>

namespace outrider {

std::vector<NamedOutcome> LikelyOutcomes(std::span<const ProposalNode> chain, const OutcomeChances& chances) {
  std::vector<NamedOutcome> outcomes;
  double reached = 1;
  for (size_t a = 0; a < chain.size(); ++a) {
    const size_t ranks = std::min(chain[a].alternatives.size(), chances.corrected.size());
    for (size_t r = 0; r < ranks; ++r) {
      outcomes.push_back(
          {a, static_cast<int>(r), reached * (1 - chances.accepted[a]) * chances.corrected[r]});
    }
    reached *= chances.accepted[a];
  }
  outcomes.push_back({chain.size(), 0, reached * chances.continued});
  std::stable_sort(outcomes.begin(), outcomes.end(), [](const NamedOutcome& one, const NamedOutcome& other) {
    return one.chance > other.chance;
  });
  return outcomes;
}

}  // namespace outrider
