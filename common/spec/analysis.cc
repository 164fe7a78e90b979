#include "common/spec/analysis.h"

#include <cmath>

namespace outrider {

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
  int best = 0;
  for (int k = 1; k <= max_k; ++k) {
    if (WalltimeGain(alpha, k, c) > WalltimeGain(alpha, best, c)) best = k;
  }
  return best;
}

double GuaranteedGain(double alpha, double c) { return (1 + alpha) / (1 + c); }

double OperationsFactor(double alpha, int k, double c_hat) {
  return (k * c_hat + k + 1) / ExpectedTokens(alpha, k);
}

double MemoryTrafficFactor(double alpha, int k, double draft) {
  return (k * draft + 1) / ExpectedTokens(alpha, k);
}

}  // namespace outrider
