// The gain from speculation, after Leviathan, Kalman and Matias, "Fast inference from transformers via
// speculative decoding", arXiv 2211.17192. The paper's gamma, the number of drafted tokens a round, is `k`
// here.
//
// alpha in [0, 1) is the expected acceptance rate of a drafted token, taken as independent of the position; c
// >= 0 is the time of a draft step in units of a target step, and c_hat its arithmetic operations likewise.
// Pure functions, any thread; arguments outside their range give meaningless numbers.
#pragma once

#include "common/spec/distribution.h"

namespace outrider {

// beta = sum over x of min(p(x), q(x)): how likely a token drawn from q is accepted (Theorem 3.5; Overlap).
// alpha is its mean over contexts (Corollary 3.6).

// D_LK(p, q) = sum over x of |p(x) - m(x)| with m = (p + q) / 2, in [0, 1] (Definition 3.2). beta = 1 - D_LK.
double DivergenceLk(const WeightRow& p, const Distribution& q);

// Expected tokens a round yields, correction or bonus included: (1 - alpha^(k+1)) / (1 - alpha) (equation 1).
double ExpectedTokens(double alpha, int k);

// The limit of ExpectedTokens as k grows, when drafting is free: 1 / (1 - alpha) (section 3.3).
double OracleBound(double alpha);

// Expected walltime improvement over plain decoding: (1 - alpha^(k+1)) / ((1 - alpha) (k c + 1))
// (Theorem 3.8).
double WalltimeGain(double alpha, int k, double c);

// The k in [0, max_k] with the largest walltime gain, the smallest of equals (section 3.5).
int BestK(double alpha, double c, int max_k);

// Walltime gain of drafting while the target verifies, if every outcome was drafted for. Rounds then overlap
// perfectly and the slower side sets the pace: a round yields as many tokens in time max(1 + wait, k c).
// `wait` >= 0, in units of a target step, is the time of a verification beyond the step, such as the round
// trip. Nothing that drafts k tokens for each verification is faster.
double OverlapGain(double alpha, int k, double c, double wait);

// The k in [0, max_k] with the largest overlap gain, the smallest of equals.
int BestOverlapK(double alpha, double c, double wait, int max_k);

// The same if a round's outcome was drafted for with probability `hit_rate`, whatever the outcome, and a
// message to or from either server takes `delay` target steps. With d = delay, a round costs
//   miss: 1 + 2d for the verification, then k c + 2d for a proposal, as without drafting ahead;
//   hit: 2d + max(1, s c), since the proposal was begun with the verification. s = k steps after a
//   correction; k + 1 after full acceptance, of probability alpha^k, as the token that follows is drafted
//   first.
// Both outcomes are drafted for together, in the same steps. With hit rate 0 and no delay this is Theorem
// 3.8. The unit is plain decoding without delay; with delay, plain decoding has 1 / (1 + 2d).
double RunAheadGain(double alpha, int k, double c, double hit_rate, double delay);

// Corollary 3.9: when alpha > c some k improves on plain decoding, by at least (1 + alpha) / (1 + c).
double GuaranteedGain(double alpha, double c);

// Expected factor of arithmetic operations over plain decoding:
// (1 - alpha) (k c_hat + k + 1) / (1 - alpha^(k+1)) (Theorem 3.11).
double OperationsFactor(double alpha, int k, double c_hat);

// Expected factor of memory traffic over plain decoding, where a target step reads the weights and cache once
// whatever the number of tokens (section 3.4), and a draft step moves `draft` times as much:
// (1 - alpha) (k draft + 1) / (1 - alpha^(k+1)). With draft = 0 it is 1 / ExpectedTokens.
double MemoryTrafficFactor(double alpha, int k, double draft);

}  // namespace outrider
