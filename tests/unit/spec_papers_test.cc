// Figures of papers and articles, recomputed: those that hold, and the right ones where they err (docs/papers.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "common/spec/analysis.h"

namespace outrider {
namespace {

using Law = std::array<double, 3>;

constexpr Law kTarget = {.5, .3, .2}, kFirst = {.2, .2, .6}, kSecond = {.1, .3, .6};

// norm(max(0, p - q)).
Law Residual(const Law& p, const Law& q) {
  Law residual;
  double sum = 0;
  for (size_t x = 0; x < p.size(); ++x) sum += residual[x] = std::max(0.0, p[x] - q[x]);
  for (double& value : residual) value /= sum;
  return residual;
}

// The law of the token if drafts of kFirst and kSecond are tried in this order. If `merged`, equal drafts are one node,
// which is tried once against kFirst.
Law LawOfTwoDrafts(bool merged) {
  const Law after_first = Residual(kTarget, kFirst), after_second = Residual(after_first, kSecond);
  Law law = {};
  for (size_t x1 = 0; x1 < 3; ++x1) {
    for (size_t x2 = 0; x2 < 3; ++x2) {
      const double drawn = kFirst[x1] * kSecond[x2];
      const double accept = std::min(1.0, kTarget[x1] / kFirst[x1]);
      const double accept_second = std::min(1.0, after_first[x2] / kSecond[x2]);
      law[x1] += drawn * accept;
      const double rejected = drawn * (1 - accept);
      const bool one_node = merged && x1 == x2;
      if (!one_node) law[x2] += rejected * accept_second;
      for (size_t x = 0; x < 3; ++x) {
        law[x] += one_node ? rejected * after_first[x] : rejected * (1 - accept_second) * after_second[x];
      }
    }
  }
  return law;
}

double TotalVariation(const Law& a, const Law& b) {
  double sum = 0;
  for (size_t x = 0; x < a.size(); ++x) sum += std::abs(a[x] - b[x]) / 2;
  return sum;
}

TEST(Papers, EqualDraftsMustNotBeMergedIntoOneNode) {
  EXPECT_NEAR(TotalVariation(LawOfTwoDrafts(false), kTarget), 0, 1e-12);
  EXPECT_NEAR(TotalVariation(LawOfTwoDrafts(true), kTarget), .06, .001);
}

TEST(Papers, TheLastTermOfTheMeanLengthHasAllTokensAndTheBonus) {
  const double beta = .8;
  const int most = 10;
  double mean = (most + 1) * std::pow(beta, most);
  for (int i = 0; i < most; ++i) mean += (i + 1) * std::pow(beta, i) * (1 - beta);
  EXPECT_NEAR(mean, 4.57, .005);
  EXPECT_NEAR(ExpectedTokens(beta, most), mean, 1e-12);
}

TEST(Papers, LenienceGainsLessThanAppendixA5Says) {
  const auto best = [](double alpha) { return WalltimeGain(alpha, BestK(alpha, .02, 30), .02); };
  EXPECT_NEAR(best(.62), 2.27, .005);
  EXPECT_NEAR(best(.71), 2.84, .005);
  EXPECT_NEAR(best(.76), 3.30, .005);
  EXPECT_NEAR(best(.84), 4.53, .005);
}

TEST(Papers, OneDraftOfRejectionSamplingIsAcceptedLessOften) {
  double overlap = 0, bound = 0;
  for (size_t x = 0; x < 3; ++x) {
    overlap += std::min(kTarget[x], kFirst[x]);
    bound = std::max(bound, kTarget[x] / kFirst[x]);
  }
  EXPECT_NEAR(overlap, .6, 1e-12);
  EXPECT_NEAR(1 / bound, .4, 1e-12);
}

TEST(Papers, FourDraftedTokensYieldSoManyAccepted) {
  const auto accepted = [](double alpha) { return ExpectedTokens(alpha, 4) - 1; };
  EXPECT_NEAR(accepted(.7), 1.77, .005);
  EXPECT_NEAR(accepted(.9), 3.10, .005);
}

TEST(Papers, EightTokensAtATenthOfTheTimeGainALittleLessThanTheArticleSays) {
  EXPECT_NEAR(WalltimeGain(.8, 8, .1), 2.405, .0005);
}

TEST(Papers, ADraftOfTwoFifthsOfTheTimeGainsLittleInLockstep) {
  const auto best = [](double alpha) { return WalltimeGain(alpha, BestK(alpha, .385, 30), .385); };
  EXPECT_NEAR(best(.7), 1.24, .005);
  EXPECT_NEAR(best(.8), 1.38, .005);
  EXPECT_NEAR(best(.9), 1.61, .005);
}

}  // namespace
}  // namespace outrider
