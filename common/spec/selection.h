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
inline bool IsHeavier(const WeightedToken& a, const WeightedToken& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

// Fills `kept` with the first min(k, values.size()) values in the order of IsHeavier, and `ids` with their
// tokens; ids ascend. Values are not NaN; those below `least` are never kept. k >= 1. Takes two passes over
// the row, and work for little more than k tokens: no sort, and few branches that depend on the values.
void SelectLargest(std::span<const float> values, size_t k, float least, std::vector<TokenId>& ids,
                   std::vector<float>& kept);
// A `least` that leaves out only -infinity.
inline constexpr float kLeastFinite = std::numeric_limits<float>::lowest();

// The first min(n, values.size()) tokens in the order of IsHeavier, without -infinity. Empty for n <= 0.
std::vector<WeightedToken> LargestOf(std::span<const float> values, int n);

// Memory that KeepMass reuses from row to row.
struct MassScratch {
  std::vector<float> band;
  std::vector<WeightedToken> tokens;
};

// Keeps the shortest prefix in the order of IsHeavier whose sum is at least `mass`, and sets all other
// weights to 0. Keeps all if no prefix has that sum, and always at least one. Weights are >= 0 and one is
// positive. Takes a few passes over the row and does not sort it.
void KeepMass(std::span<float> weights, double mass, MassScratch& scratch);

}  // namespace outrider
