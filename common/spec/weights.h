// Passes over rows of unnormalised weights: the one place that sums, normalises and samples them, so that
// draft and target agree on every bit of a distribution.
//
// A row is a probability distribution p(x) = w[x] * (1 / SumWeights(w)) over tokens or over a list of ids.
// The order of every sum is that of team/row_sums.h, whose templates these functions call with a team of one.
// The loops over a block are compiled for several instruction sets, which give the same bits.
//
// Pure functions, any thread. Weights are finite and >= 0 unless stated.
#pragma once

#include <cstddef>
#include <span>

#include "common/spec/team/team.h"
#include "common/spec/types.h"

namespace outrider {

inline constexpr size_t kWeightBlock = team::kSumBlock;

// The sum, in the order above. NaN or infinite if a weight is.
double SumWeights(std::span<const float> weights);
double SumWeights(std::span<const double> weights);

// The smallest index whose cumulative weight exceeds u * total, for u in [0, 1) and total =
// SumWeights(weights) > 0. Non-decreasing in u, and never an index of weight zero, even where rounding makes
// u * total reach the sum of the row.
size_t SampleIndex(std::span<const float> weights, double total, double u);
size_t SampleIndex(std::span<const double> weights, double total, double u);

// Entropy in nats of the distribution, -sum p log p. Relative accuracy about 1e-6 (it feeds a canary, not a
// decision).
double Entropy(std::span<const float> weights, double total);

// The largest value and the lowest index that has it; finite is false when any value is NaN or infinite, and
// then the other two mean nothing.
struct MaxResult {
  float value = 0;
  TokenId index = 0;
  bool finite = true;
};
MaxResult FindMax(std::span<const float> values);

// Writes to found[0..], ascending, the indices of the values that are at least `bound`, among the
// kWeightBlock values from `begin` on (fewer at the end). Returns how many there are. `found` has room for
// kWeightBlock.
size_t CollectAtLeast(std::span<const float> values, size_t begin, float bound, TokenId* found);

// A bound that k to k + slack of the values reach, and how many reach it. If equal values leave no such
// bound, it is the k-th largest value. 1 <= k <= values.size(); values are finite or -infinity.
struct ValueAndCount {
  float value = 0;
  size_t count = 0;
};
ValueAndCount BoundOfLargest(std::span<const float> values, size_t k, size_t slack);

// maxima[c] <- the largest of values[c], values[c + maxima.size()], values[c + 2 * maxima.size()], ...;
// -infinity if there are no such values.
void FindColumnMaxima(std::span<const float> values, std::span<float> maxima);

// values[x] <- exp((values[x] - max) * inverse_temperature) for values <= max (-infinity allowed, gives 0). A
// result below the smallest normal float is 0. Relative error at most 2^-22 plus that of rounding the
// exponent to float.
void ExpInPlace(std::span<float> values, float max, float inverse_temperature);

// The sum of the weights that are at least `bound`, and their number.
struct MassAndCount {
  double mass = 0;
  int count = 0;
};
MassAndCount MassAtLeast(std::span<const float> weights, float bound);

// Sets every weight below `bound` to 0.
void RemoveBelow(std::span<float> weights, float bound);

// scaled[x] = scale * weights[x], rows of equal length.
void ScaleWeights(std::span<const float> weights, double scale, std::span<double> scaled);

// residual[x] <- max(residual[x] - scale * q[x], 0), rows of equal length.
void SubtractWeights(std::span<const float> q, double scale, std::span<double> residual);

// sum over x of min(scale_p * p[x], scale_q * q[x]).
double OverlapMass(std::span<const float> p, double scale_p, std::span<const float> q, double scale_q);

}  // namespace outrider
