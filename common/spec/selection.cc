#include "common/spec/selection.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/spec/check.h"
#include "common/spec/weights.h"

namespace outrider {
namespace {

// The most columns that RoughBound divides a row into.
constexpr size_t kMaxColumns = 2048;

// A bound that at least k values reach, and in most rows few more. Each column's maximum is a value of the
// row, so k values reach the k-th largest maximum. Few others do, unless the heavy tokens share columns.
float RoughBound(std::span<const float> values, size_t k) {
  const size_t columns = (2 * k + kWeightBlock - 1) / kWeightBlock * kWeightBlock;
  const size_t slack = k / 4;
  if (columns > kMaxColumns || 4 * columns > values.size()) return BoundOfLargest(values, k, slack).value;
  float maxima[kMaxColumns];
  FindColumnMaxima(values, {maxima, columns});
  return BoundOfLargest({maxima, columns}, k, slack).value;
}

// Fills `tokens` with the weights in [low, high), low > 0, ids ascending.
void CollectBetween(std::span<const float> weights, float low, float high,
                    std::vector<WeightedToken>& tokens) {
  TokenId ids[kWeightBlock];
  tokens.clear();
  for (size_t begin = 0; begin < weights.size(); begin += kWeightBlock) {
    const size_t count = CollectAtLeast(weights, begin, low, ids);
    for (size_t i = 0; i < count; ++i) {
      if (weights[ids[i]] < high) tokens.push_back({weights[ids[i]], ids[i]});
    }
  }
}

}  // namespace

void SelectLargest(std::span<const float> values, size_t k, float least, std::vector<TokenId>& ids,
                   std::vector<float>& kept) {
  OUTRIDER_CHECK(k >= 1);
  ids.clear();
  kept.clear();
  const size_t room = std::min(k + k / 2, values.size());
  ids.reserve(room);
  kept.reserve(room);
  const float bound = k < values.size() ? std::max(least, RoughBound(values, k)) : least;
  TokenId found[kWeightBlock];
  for (size_t begin = 0; begin < values.size(); begin += kWeightBlock) {
    const size_t count = CollectAtLeast(values, begin, bound, found);
    ids.insert(ids.end(), found, found + count);
    for (size_t i = 0; i < count; ++i) kept.push_back(values[found[i]]);
  }
  if (kept.size() <= k) return;

  const ValueAndCount reached = BoundOfLargest(kept, k, /*slack=*/0);
  // More than k values reach it only if several equal it. The last of these are dropped.
  const auto is_bound = [&](float value) { return value == reached.value; };
  size_t equal = std::count_if(kept.begin(), kept.end(), is_bound);
  const size_t last_equal = equal - (reached.count - k);
  size_t to = 0;
  equal = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    const float value = kept[i];
    if (is_bound(value) && ++equal > last_equal) continue;
    ids[to] = ids[i];
    kept[to] = value;
    to += value >= reached.value;
  }
  ids.resize(to);
  kept.resize(to);
}

std::vector<WeightedToken> LargestOf(std::span<const float> values, int n) {
  std::vector<WeightedToken> best;
  if (n <= 0) return best;
  std::vector<TokenId> ids;
  std::vector<float> kept;
  SelectLargest(values, static_cast<size_t>(n), kLeastFinite, ids, kept);
  for (size_t i = 0; i < ids.size(); ++i) best.push_back({kept[i], ids[i]});
  std::sort(best.begin(), best.end(), IsHeavier);
  return best;
}

void KeepMass(std::span<float> weights, double mass, MassScratch& scratch) {
  constexpr int kFew = 32;
  // The lightest weight that stays is in [low, high): the weights of at least `high` sum to less than `mass`,
  // and those of at least `low` to `mass` or more. Positive floats are ordered as their bits, so bisection of
  // the bits converges on a relative scale. Weights below half of (total - mass) / n are removed in any case,
  // which saves a few passes.
  const double bound = 0.5 * (SumWeights(weights) - mass) / static_cast<double>(weights.size());
  uint32_t low = std::max(std::bit_cast<uint32_t>(static_cast<float>(std::max(bound, 0.0))), 1u);
  uint32_t high = std::bit_cast<uint32_t>(FindMax(weights).value) + 1;
  MassAndCount above;                           // the weights of at least `high`
  int band = static_cast<int>(weights.size());  // at least the number of weights in [low, high)
  std::span<const float> searched = weights;    // holds all weights in [low, high),
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
  std::sort(scratch.tokens.begin(), scratch.tokens.end(), IsHeavier);
  RemoveBelow(weights, std::bit_cast<float>(high));
  double sum = above.mass;
  for (const WeightedToken& token : scratch.tokens) {
    weights[token.id] = token.value;
    sum += token.value;
    if (sum >= mass) break;
  }
}

}  // namespace outrider
