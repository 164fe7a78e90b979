#include "common/spec/draft_stop.h"

#include <algorithm>
#include <cmath>

#include "common/spec/weights.h"

namespace outrider {

float Confidence(const WeightRow& row) {
  const bool greedy = row.point_mass >= 0;
  const std::span<const float> values = greedy ? row.logits : row.weights;
  const size_t likeliest = static_cast<size_t>(greedy ? row.point_mass : FindMax(values).index);
  const float next =
      std::max(FindMax(values.first(likeliest)).value, FindMax(values.subspan(likeliest + 1)).value);
  if (greedy) return 1 / (1 + std::exp(next - values[likeliest]));
  return values[likeliest] / (values[likeliest] + std::max(next, 0.0f));
}

int ConfidenceBin(float confidence, int bins) {
  if (!(confidence > 0.5f)) return 0;
  return std::min(static_cast<int>((2 * std::min(confidence, 1.0f) - 1) * static_cast<float>(bins)),
                  bins - 1);
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
