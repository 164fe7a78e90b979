// Picks the heaviest tokens of a row without sorting it.
#pragma once

#include <cstddef>
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

// Fills `kept` with the min(k, values.size()) first tokens of `values` in that order, themselves in no
// particular order. Values are not NaN; those of -infinity are never kept. k >= 1. One pass that reads, plus
// work for about k log(n / k) tokens.
void SelectLargest(std::span<const float> values, size_t k, std::vector<WeightedToken>& kept);

// Memory for KeepMass, to be used again from row to row.
struct MassScratch {
  std::vector<float> band;
  std::vector<WeightedToken> tokens;
};

// Sets to 0 all weights but the shortest prefix in that order whose sum is `mass` or more (all stay if none
// is), at least one. Weights are >= 0 and one is positive. A few passes over the row and no sort of it.
void KeepMass(std::span<float> weights, double mass, MassScratch& scratch);

}  // namespace outrider
