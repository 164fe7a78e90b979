// Log-probabilities for the answer: of the emitted tokens, of the best alternatives, and of a prompt.
//
// Natural logarithms. Pure functions, any thread.
#pragma once

#include <span>
#include <vector>

#include "common/spec/distribution.h"
#include "common/spec/types.h"

namespace outrider {

// The most alternatives that a request can ask for at a position.
inline constexpr int kMaxTopLogProbabilities = 20;

struct TokenLogProbability {
  TokenId token = 0;
  double log_probability = 0;
};

// The most probable tokens after a text, best first, ties to the lowest id.
using CandidateRow = std::vector<TokenLogProbability>;

// One position of a text: its token, and the most probable tokens there.
struct PositionLogProbabilities {
  TokenLogProbability token;
  std::vector<TokenLogProbability> top;
};

// The n most probable tokens, best first, ties to the lowest id; fewer where fewer have any probability.
// After the controls:
std::vector<TokenLogProbability> TopLogProbabilities(const WeightRow& row, int n);
// and before them, from finite logits at temperature 1:
std::vector<TokenLogProbability> TopLogProbabilities(std::span<const float> logits, int n);

// Log of the sum of exp(logits): logits[x] - LogSumExp(logits) is the log-probability of x before the
// controls. Finite logits; relative accuracy of the sum about 1e-7.
double LogSumExp(std::span<const float> logits);

}  // namespace outrider
