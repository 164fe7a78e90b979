// Picks the heaviest tokens of a row without sorting it.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "common/spec/types.h"

namespace outrider {

struct WeightedToken {
  float value = 0;
  TokenId id = 0;
};

// The order in which tokens are preferred: heavier first, then the lower id.
inline bool Heavier(const WeightedToken& a, const WeightedToken& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

// Fills `kept` with the min(k, values.size()) first values in that order and `ids` with their tokens, ids
// ascending. Values are not NaN; those below `least` are never kept. k >= 1. Two passes over the row, and
// work for little more than k tokens: no sort, and few branches that depend on the values.
void SelectLargest(std::span<const float> values, size_t k, float least, std::vector<TokenId>& ids,
                   std::vector<float>& kept);
// A `least` that leaves out only -infinity.
inline constexpr float kLeastFinite = std::numeric_limits<float>::lowest();

// The min(n, values.size()) first values in that order and their tokens, without -infinity. Empty for n <= 0.
std::vector<WeightedToken> LargestOf(std::span<const float> values, int n);

// Memory that KeepMass reuses from row to row.
struct MassScratch {
  std::vector<float> band;
  std::vector<WeightedToken> tokens;
};

// Sets to 0 all weights but the shortest prefix in that order whose sum is at least `mass` (all stay if there
// is none). At least one stays. Weights are >= 0 and one is positive. A few passes over the row and no sort
// of it.
void KeepMass(std::span<float> weights, double mass, MassScratch& scratch);

}  // namespace outrider
