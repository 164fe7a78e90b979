// Pearson's chi-square test of observed counts against exact probabilities.
#pragma once

#include <cmath>
#include <limits>
#include <map>

namespace outrider {

// Upper tail of the chi-square distribution: the regularised incomplete gamma function Q(degrees / 2, x / 2),
// by its series below the mean and by Lentz's continued fraction above it.
inline double ChiSquareTail(double x, double degrees) {
  const double a = degrees / 2;
  x /= 2;
  if (x <= 0) return 1;
  const double front = std::exp(a * std::log(x) - x - std::lgamma(a));
  if (x < a + 1) {
    double term = 1 / a, sum = term;
    for (double n = a + 1; term > sum * 1e-16; ++n) sum += term *= x / n;
    return 1 - front * sum;
  }
  constexpr double kTiny = std::numeric_limits<double>::min() / 1e-16;
  double b = x + 1 - a, c = 1 / kTiny, d = 1 / b, fraction = d;
  for (int i = 1; i < 100000; ++i) {
    const double an = -i * (i - a);
    b += 2;
    d = an * d + b;
    if (std::abs(d) < kTiny) d = kTiny;
    c = b + an / c;
    if (std::abs(c) < kTiny) c = kTiny;
    d = 1 / d;
    fraction *= d * c;
    if (std::abs(d * c - 1) < 1e-15) break;
  }
  return front * fraction;
}

// The p-value of the counts: how likely counts at least as far from `expected` are. `expected` are
// probabilities that sum to 1. Cells with fewer than five expected counts are pooled. An observation of
// probability zero gives 0.
template <class Cell>
double ChiSquareP(const std::map<Cell, int>& observed, const std::map<Cell, double>& expected) {
  double samples = 0;
  for (const auto& [cell, count] : observed) {
    const auto it = expected.find(cell);
    if (it == expected.end() || it->second == 0) return 0;
    samples += count;
  }
  double chi_square = 0, rest_expected = 0, rest_observed = 0;
  int cells = 0;
  for (const auto& [cell, probability] : expected) {
    const auto it = observed.find(cell);
    const double count = it == observed.end() ? 0 : it->second;
    const double mean = samples * probability;
    if (mean < 5) {
      rest_expected += mean;
      rest_observed += count;
    } else {
      chi_square += (count - mean) * (count - mean) / mean;
      ++cells;
    }
  }
  if (rest_expected >= 5) {
    chi_square += (rest_observed - rest_expected) * (rest_observed - rest_expected) / rest_expected;
    ++cells;
  }
  return ChiSquareTail(chi_square, cells - 1);
}

}  // namespace outrider
