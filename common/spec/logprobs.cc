#include "common/spec/logprobs.h"

#include <algorithm>
#include <cmath>

#include "common/spec/selection.h"
#include "common/spec/weights.h"

namespace outrider {

std::vector<TokenLogProbability> TopLogProbabilities(const WeightRow& row, int n) {
  std::vector<TokenLogProbability> top;
  if (row.point_mass >= 0) {
    if (n > 0) top.push_back({row.point_mass, 0});
    return top;
  }
  for (const WeightedToken& token : LargestOf(row.weights, n)) {
    if (token.value > 0) top.push_back({token.id, std::log(row(token.id))});
  }
  return top;
}

std::vector<TokenLogProbability> TopLogProbabilities(std::span<const float> logits, int n) {
  const double log_sum = LogSumExp(logits);
  std::vector<TokenLogProbability> top;
  for (const WeightedToken& token : LargestOf(logits, n)) top.push_back({token.id, token.value - log_sum});
  return top;
}

double LogSumExp(std::span<const float> logits) {
  const float max = FindMax(logits).value;
  float weights[kWeightBlock];
  double sum = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kWeightBlock) {
    const size_t size = std::min(kWeightBlock, logits.size() - begin);
    std::copy_n(logits.data() + begin, size, weights);
    ExpInPlace({weights, size}, max, 1);
    sum += SumWeights({weights, size});
  }
  return max + std::log(sum);
}

}  // namespace outrider
