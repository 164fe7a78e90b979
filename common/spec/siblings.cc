#include "common/spec/siblings.h"

#include <algorithm>
#include <utility>

#include "common/spec/weights.h"

namespace outrider {
namespace {

// Takes a token's share from q; `total` is 0 if nothing is left.
void Remove(TokenId token, Distribution& q) {
  if (q.form == Distribution::Form::kDense) {
    q.weights[token] = 0;
  } else {
    const auto entry = std::lower_bound(q.ids.begin(), q.ids.end(), token) - q.ids.begin();
    q.ids.erase(q.ids.begin() + entry);
    q.weights.erase(q.weights.begin() + entry);
  }
  q.total = SumWeights(q.weights);
}

Distribution PointMassOn(TokenId token) {
  return {.form = Distribution::Form::kPointMass, .ids = {token}, .total = 1};
}

std::vector<ProposalNode> FirstChoices(const SiblingDraw& draw, const WeightRow& row, const RandomKey& key,
                                       uint64_t position, Noise& noise) {
  std::vector<ProposalNode> siblings = {Propose(draw.rule, row, draw.top_n, position, noise)};
  const TokenId first = siblings[0].token;
  for (TokenId token : Alternatives(draw.rule, row, key, position, first, draw.count - 1)) {
    siblings.push_back(
        {.token = token, .q = draw.rule == Rule::kCoupled ? Distribution{} : PointMassOn(token)});
  }
  return siblings;
}

}  // namespace

std::vector<ProposalNode> ProposeSiblings(const SiblingDraw& draw, const WeightRow& row, const RandomKey& key,
                                          uint64_t position, uint64_t first_candidate, Noise& noise) {
  if (draw.count <= 0) return {};
  if (draw.rule == Rule::kCoupled || row.point_mass >= 0)
    return FirstChoices(draw, row, key, position, noise);
  std::vector<ProposalNode> siblings;
  Distribution q = TruncateTopN(row, draw.top_n);
  for (int i = 0; i < draw.count && q.total > 0; ++i) {
    const TokenId token = noise.Decide(Purpose::kDraft, position, first_candidate + static_cast<uint64_t>(i),
                                       [&](double u) { return Sample(q, u); });
    siblings.push_back({.token = token, .q = q});
    if (!draw.independent) Remove(token, q);
  }
  return siblings;
}

}  // namespace outrider
