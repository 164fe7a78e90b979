#include "common/spec/analysis.h"

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {

// The k in [0, max_k] with the largest gain, the smallest of equals.
template <class Gain>
int ArgMax(int max_k, const Gain& gain) {
  int best = 0;
  for (int k = 1; k <= max_k; ++k) {
    if (gain(k) > gain(best)) best = k;
  }
  return best;
}

}  // namespace

double DivergenceLk(const WeightRow& p, const Distribution& q) {
  double sum = 0;
  for (size_t x = 0; x < p.vocab(); ++x) {
    const TokenId token = static_cast<TokenId>(x);
    const double mean = (p(token) + q(token)) / 2;
    sum += std::abs(p(token) - mean);
  }
  return sum;
}

double ExpectedTokens(double alpha, int k) { return (1 - std::pow(alpha, k + 1)) / (1 - alpha); }

double OracleBound(double alpha) { return 1 / (1 - alpha); }

double WalltimeGain(double alpha, int k, double c) { return ExpectedTokens(alpha, k) / (k * c + 1); }

int BestK(double alpha, double c, int max_k) {
  return ArgMax(max_k, [&](int k) { return WalltimeGain(alpha, k, c); });
}

double OverlapGain(double alpha, int k, double c, double wait) {
  return ExpectedTokens(alpha, k) / std::max(1 + wait, k * c);
}

int BestOverlapK(double alpha, double c, double wait, int max_k) {
  return ArgMax(max_k, [&](int k) { return OverlapGain(alpha, k, c, wait); });
}

double RunAheadGain(double alpha, int k, double c, double hit_rate, double delay) {
  const double way = 2 * delay, accepted = std::pow(alpha, k);
  const double hit = way + accepted * std::max(1.0, (k + 1) * c) + (1 - accepted) * std::max(1.0, k * c);
  const double miss = 1 + way + k * c + way;
  return ExpectedTokens(alpha, k) / (hit_rate * hit + (1 - hit_rate) * miss);
}

double GuaranteedGain(double alpha, double c) { return (1 + alpha) / (1 + c); }

double OperationsFactor(double alpha, int k, double c_hat) {
  return (k * c_hat + k + 1) / ExpectedTokens(alpha, k);
}

double MemoryTrafficFactor(double alpha, int k, double draft) {
  return (k * draft + 1) / ExpectedTokens(alpha, k);
}

}  // namespace outrider
