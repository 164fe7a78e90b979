#include "common/spec/draft_stop.h"

#include <algorithm>

#include "common/spec/logprobs.h"
#include "common/spec/weights.h"

namespace outrider {

float Confidence(const WeightRow& row) {
  if (row.point_mass >= 0) {
    return static_cast<float>(1 / SumExp(row.logits, row.logits[static_cast<size_t>(row.point_mass)]));
  }
  return static_cast<float>(FindMax(row.weights).value / row.total);
}

int ConfidenceBin(float confidence, int bins) {
  if (!(confidence > 0)) return 0;
  return std::min(static_cast<int>(std::min(confidence, 1.0f) * static_cast<float>(bins)), bins - 1);
}

bool EndsDraft(const DraftStop& stop, std::span<const ProposalNode> drafted) {
  if (stop.acceptance.empty()) return false;
  double all_stand = 1;
  for (const ProposalNode& node : drafted) {
    const int bin = ConfidenceBin(node.confidence, static_cast<int>(stop.acceptance.size()));
    all_stand *= stop.acceptance[static_cast<size_t>(bin)];
  }
  return all_stand < stop.least;
}

}  // namespace outrider
