#include "coordinator/drafters/row_drafter.h"

#include <algorithm>

#include "common/rpc/sampling.h"
#include "common/spec/verify.h"

namespace outrider {
namespace {

// Tokens kept of a row, unless the request says otherwise.
constexpr int kTopN = 64;

WeightRow AsRow(std::span<const float> weights, bool greedy) {
  WeightRow row{.weights = weights, .total = SumWeights(weights)};
  if (greedy) row.point_mass = static_cast<TokenId>(std::ranges::max_element(weights) - weights.begin());
  return row;
}

}  // namespace

Proposal RowDrafter::Draft(const Generation& generation, int k) {
  const v1::SequenceParams& params = generation.request().params;
  const RandomKey key{params.seed(), params.sample_index()};
  const bool own = params.has_draft_temperature();
  const bool greedy = own ? params.draft_temperature() == 0
                          : params.sampling().has_temperature() && params.sampling().temperature() == 0;
  const int top_n = params.draft_top_n() == 0 ? kTopN : static_cast<int>(params.draft_top_n());
  const size_t n = generation.size();
  Proposal proposal;
  TokenId previous = generation.tokens().back();
  for (int i = 0; i < k; ++i) {
    const size_t position = n + static_cast<size_t>(i);
    const WeightRow row = AsRow(rows_->Row(position, previous), greedy);
    Distribution q;
    if (params.rule() == v1::RULE_COUPLED) {
      previous = Race(row, key, position);
    } else {
      q = TruncateTopN(row, top_n);
      previous = DraftSample(q, key, position, n);
    }
    AppendToChain(previous, std::move(q), proposal);
  }
  return proposal;
}

}  // namespace outrider
