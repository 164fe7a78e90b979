// The gain from speculation, after Leviathan, Kalman and Matias, "Fast inference from transformers via
// speculative decoding", arXiv 2211.17192. `k` is the number of tokens drafted in a round, the paper's gamma.
// Time and operations are relative to a step of the target.
//
// alpha in [0, 1) is the expected acceptance rate of a drafted token, taken as independent of the position; c
// >= 0 is the time of a draft step, and c_hat is the number of its arithmetic operations. Pure functions, any
// thread; arguments outside their range give meaningless numbers.
#pragma once

#include <algorithm>
#include <cmath>

#include "common/spec/distribution.h"

namespace outrider {

// beta = sum over x of min(p(x), q(x)) is the probability that a token drawn from q is accepted (Theorem 3.5;
// Overlap). alpha is its mean over contexts (Corollary 3.6).

// D_LK(p, q) = sum over x of |p(x) - m(x)| with m = (p + q) / 2, in [0, 1] (Definition 3.2). beta = 1 - D_LK.
inline double DivergenceLk(const WeightRow& p, const Distribution& q) {
  double sum = 0;
  for (size_t x = 0; x < p.vocab(); ++x) {
    const TokenId token = static_cast<TokenId>(x);
    const double mean = (p(token) + q(token)) / 2;
    sum += std::abs(p(token) - mean);
  }
  return sum;
}

// Expected tokens of a round, with the correction or bonus: (1 - alpha^(k+1)) / (1 - alpha) (equation 1).
inline double ExpectedTokens(double alpha, int k) { return (1 - std::pow(alpha, k + 1)) / (1 - alpha); }

// The limit of ExpectedTokens for large k, the gain if drafting is free: 1 / (1 - alpha) (section 3.3).
inline double OracleBound(double alpha) { return 1 / (1 - alpha); }

// Expected walltime improvement over plain decoding: (1 - alpha^(k+1)) / ((1 - alpha) (k c + 1))
// (Theorem 3.8).
inline double WalltimeGain(double alpha, int k, double c) { return ExpectedTokens(alpha, k) / (k * c + 1); }

// The k in [0, max_k] with the largest gain; ties go to the smallest k.
template <class Gain>
int ArgMax(int max_k, const Gain& gain) {
  int best = 0;
  for (int k = 1; k <= max_k; ++k) {
    if (gain(k) > gain(best)) best = k;
  }
  return best;
}

// The k in [0, max_k] with the largest walltime gain; ties go to the smallest k (section 3.5).
inline int BestK(double alpha, double c, int max_k) {
  return ArgMax(max_k, [&](int k) { return WalltimeGain(alpha, k, c); });
}

// Walltime gain of drafting while the target verifies, if the draft prepared for every outcome. Rounds then
// overlap perfectly and the slower side sets the pace: a round yields the same tokens in max(1 + wait, k c).
// `wait` >= 0, in target steps, is the time that a verification takes beyond the step, such as the round
// trip. No scheme that drafts k tokens for each verification is faster.
inline double OverlapGain(double alpha, int k, double c, double wait) {
  return ExpectedTokens(alpha, k) / std::max(1 + wait, k * c);
}

// The k in [0, max_k] with the largest overlap gain; ties go to the smallest k.
inline int BestOverlapK(double alpha, double c, double wait, int max_k) {
  return ArgMax(max_k, [&](int k) { return OverlapGain(alpha, k, c, wait); });
}

// The same if the draft prepared for a round's outcome with probability `hit_rate`, whatever it is, and a
// message to or from either server takes `delay` target steps. With d = delay, a round costs
//   miss: 1 + 2d for the verification, then k c + 2d for a proposal, as without drafting ahead;
//   hit: 2d + max(1, s c), since the proposal was begun with the verification. s = k steps after a
//   correction; s = k + 1 after full acceptance, which has probability alpha^k, since the token that follows
//   is drafted first.
// Both outcomes are drafted for together, in the same steps. With hit rate 0 and no delay this is Theorem
// 3.8. The unit is plain decoding without delay; with delay, plain decoding has a gain of 1 / (1 + 2d).
inline double RunAheadGain(double alpha, int k, double c, double hit_rate, double delay) {
  const double way = 2 * delay, accepted = std::pow(alpha, k);
  const double hit = way + accepted * std::max(1.0, (k + 1) * c) + (1 - accepted) * std::max(1.0, k * c);
  const double miss = 1 + way + k * c + way;
  return ExpectedTokens(alpha, k) / (hit_rate * hit + (1 - hit_rate) * miss);
}

// Corollary 3.9: if alpha > c, some k improves on plain decoding, by at least (1 + alpha) / (1 + c).
inline double GuaranteedGain(double alpha, double c) { return (1 + alpha) / (1 + c); }

// Expected arithmetic operations, relative to plain decoding:
// (1 - alpha) (k c_hat + k + 1) / (1 - alpha^(k+1)) (Theorem 3.11).
inline double OperationsFactor(double alpha, int k, double c_hat) {
  return (k * c_hat + k + 1) / ExpectedTokens(alpha, k);
}

// Expected memory traffic, relative to plain decoding, if a target step reads the weights and cache once
// whatever the number of tokens (section 3.4), and a draft step moves `draft` times as many bytes:
// (1 - alpha) (k draft + 1) / (1 - alpha^(k+1)). With draft = 0 it is 1 / ExpectedTokens.
inline double MemoryTrafficFactor(double alpha, int k, double draft) {
  return (k * draft + 1) / ExpectedTokens(alpha, k);
}

}  // namespace outrider
