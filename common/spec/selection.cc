#include "common/spec/selection.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "common/spec/check.h"
#include "common/spec/weights.h"

namespace outrider {

void SelectLargest(std::span<const float> values, size_t k, std::vector<WeightedToken>& kept) {
  OUTRIDER_CHECK(k >= 1);
  kept.clear();
  // Collect tokens block by block; whenever more than 2k are there, throw away all but the k heaviest, and
  // from then on look only at tokens heavier than the lightest of those: a later token of equal weight has a
  // higher id and loses.
  float threshold = -std::numeric_limits<float>::infinity();
  const auto cut = [&] {
    if (kept.size() <= k) return;
    std::nth_element(kept.begin(), kept.begin() + (k - 1), kept.end(), Heavier);
    kept.resize(k);
    threshold = kept.back().value;
  };
  TokenId found[kWeightBlock + 1];
  for (size_t begin = 0; begin < values.size(); begin += kWeightBlock) {
    const size_t count = CollectAbove(values, begin, threshold, found);
    for (size_t i = 0; i < count; ++i) kept.push_back({values[found[i]], found[i]});
    if (kept.size() > 2 * k) cut();
  }
  cut();
}

void KeepMass(std::span<float> weights, double mass, std::vector<WeightedToken>& scratch) {
  constexpr int kFew = 32;
  // The lightest weight that stays is in [low, high): the weights from `high` on are too little and those
  // from `low` on are enough. Positive floats are ordered as their bits, so that bisection of the bits closes
  // in on a relative scale.
  // Weights below half of (total - mass) / n go whatever the rest is, which saves a few passes.
  const double bound = 0.5 * (SumWeights(weights) - mass) / static_cast<double>(weights.size());
  uint32_t low = std::bit_cast<uint32_t>(static_cast<float>(std::max(bound, 0.0)));
  uint32_t high = std::bit_cast<uint32_t>(FindMax(weights).value) + 1;
  MassAndCount above;                           // from `high` on
  int band = static_cast<int>(weights.size());  // number of weights in [low, high)
  while (band > kFew && high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    const MassAndCount heavier = MassAtLeast(weights, std::bit_cast<float>(middle));
    if (heavier.mass >= mass) {
      low = middle;
      band = heavier.count - above.count;
    } else {
      high = middle;
      band -= heavier.count - above.count;
      above = heavier;
    }
  }
  const float low_weight = std::bit_cast<float>(low);
  const float high_weight = std::bit_cast<float>(high);
  scratch.clear();
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] >= low_weight && weights[i] < high_weight) {
      scratch.push_back({weights[i], static_cast<TokenId>(i)});
    }
  }
  std::sort(scratch.begin(), scratch.end(), Heavier);
  RemoveBelow(weights, high_weight);
  double sum = above.mass;
  bool enough = false;
  for (const WeightedToken& token : scratch) {
    if (enough) break;
    weights[token.id] = token.value;
    sum += token.value;
    enough = sum >= mass;
  }
}

}  // namespace outrider
