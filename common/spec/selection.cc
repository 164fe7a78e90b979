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

namespace {

// The weights in [low, high), low > 0, ids ascending.
void CollectBetween(std::span<const float> weights, float low, float high,
                    std::vector<WeightedToken>& tokens) {
  const float below_low = std::bit_cast<float>(std::bit_cast<uint32_t>(low) - 1);
  TokenId ids[kWeightBlock + 1];
  tokens.clear();
  for (size_t begin = 0; begin < weights.size(); begin += kWeightBlock) {
    const size_t count = CollectAbove(weights, begin, below_low, ids);
    for (size_t i = 0; i < count; ++i) {
      if (weights[ids[i]] < high) tokens.push_back({weights[ids[i]], ids[i]});
    }
  }
}

}  // namespace

void KeepMass(std::span<float> weights, double mass, MassScratch& scratch) {
  constexpr int kFew = 32;
  // The lightest weight that stays is in [low, high): the weights from `high` on are too little and those
  // from `low` on are enough. Positive floats are ordered as their bits, so that bisection of the bits closes
  // in on a relative scale. Weights below half of (total - mass) / n go whatever the rest is, which saves a
  // few passes.
  const double bound = 0.5 * (SumWeights(weights) - mass) / static_cast<double>(weights.size());
  uint32_t low = std::max(std::bit_cast<uint32_t>(static_cast<float>(std::max(bound, 0.0))), 1u);
  uint32_t high = std::bit_cast<uint32_t>(FindMax(weights).value) + 1;
  MassAndCount above;                           // the weights from `high` on
  int band = static_cast<int>(weights.size());  // at least the number of weights in [low, high)
  std::span<const float> searched = weights;    // holds all of those,
  MassAndCount set_aside;                       // and lacks these heavier ones
  bool narrowed = false;
  const auto narrow = [&] {
    CollectBetween(weights, std::bit_cast<float>(low), std::bit_cast<float>(high), scratch.tokens);
    scratch.band.clear();
    for (const WeightedToken& token : scratch.tokens) scratch.band.push_back(token.value);
    searched = scratch.band;
    set_aside = above;
    narrowed = true;
  };
  while (band > kFew && high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    MassAndCount heavier = MassAtLeast(searched, std::bit_cast<float>(middle));
    heavier.mass += set_aside.mass;
    heavier.count += set_aside.count;
    if (heavier.mass >= mass) {
      low = middle;
      band = heavier.count - above.count;
    } else {
      high = middle;
      band -= heavier.count - above.count;
      above = heavier;
    }
    if (!narrowed && 4 * static_cast<size_t>(band) < weights.size()) narrow();
  }
  if (!narrowed) narrow();
  std::erase_if(scratch.tokens, [&](const WeightedToken& token) {
    return token.value < std::bit_cast<float>(low) || token.value >= std::bit_cast<float>(high);
  });
  std::sort(scratch.tokens.begin(), scratch.tokens.end(), Heavier);
  RemoveBelow(weights, std::bit_cast<float>(high));
  double sum = above.mass;
  for (const WeightedToken& token : scratch.tokens) {
    weights[token.id] = token.value;
    sum += token.value;
    if (sum >= mass) break;
  }
}

}  // namespace outrider
