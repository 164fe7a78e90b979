// Figures of papers and articles, recomputed: those that hold, and the right ones where they err
// (docs/papers.md).
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

// The law of the token if drafts of kFirst and kSecond are tried in this order. If `merged`, equal drafts are
// one node, which is tried once against kFirst.
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

TEST(Papers, MostOf400ContextsShareOneOf512PlacesWithAnother) {
  EXPECT_NEAR(1 - std::pow(511. / 512, 399), .54, .005);
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

// Two drafted tokens, each with probability 2/3 and 1/3, of a target with 1/3 and 2/3. They are judged from
// the last to the first: by w, the chance that the first i tokens may stand, tokens i + 1 on are replaced by
// one from max(0, w p - q) or remain in question.
struct Judged {
  double law[2][2] = {};
  double accepted = 0;
};
Judged JudgeBackwards(double (*weight)(double ratio)) {
  constexpr double kP[] = {1. / 3, 2. / 3}, kQ[] = {2. / 3, 1. / 3};
  Judged result;
  for (size_t x = 0; x < 2; ++x) {
    const double w = weight(kP[x] / kQ[x]);
    for (size_t y = 0; y < 2; ++y) {
      const double drawn = kQ[x] * kQ[y], both = std::min(1.0, w * kP[y] / kQ[y]);
      result.law[x][y] += drawn * both;
      result.accepted += 2 * drawn * both;
      double missing[2], more = 0, less = 0;
      for (size_t z = 0; z < 2; ++z) {
        missing[z] = std::max(0.0, w * kP[z] - kQ[z]);
        more += missing[z];
        less += std::max(0.0, kQ[z] - w * kP[z]);
      }
      const double one = drawn * (1 - both) * more / std::max(more, less);
      result.accepted += one;
      for (size_t z = 0; z < 2 && more > 0; ++z) result.law[x][z] += one * missing[z] / more;
      const double none = drawn * (1 - both) - one;
      for (size_t z = 0; z < 2; ++z) result.law[1][z] += none * kP[z];  // only the second token has p > q
    }
  }
  return result;
}

// arXiv 2601.05724 divides the ratio of the joint probabilities by its largest value so far. This is block
// verification's recursion, and without it the law is another.
TEST(Papers, HierarchicalVerificationIsBlockVerification) {
  const auto total_variation = [](const Judged& judged) {
    const double p[] = {1. / 3, 2. / 3};
    double sum = 0;
    for (size_t x = 0; x < 2; ++x) {
      for (size_t y = 0; y < 2; ++y) sum += std::abs(judged.law[x][y] - p[x] * p[y]) / 2;
    }
    return sum;
  };
  const Judged capped = JudgeBackwards([](double ratio) { return ratio / std::max(1.0, ratio); });
  EXPECT_NEAR(capped.accepted, 11. / 9, 1e-12);
  EXPECT_NEAR(total_variation(capped), 0, 1e-12);
  const Judged uncapped = JudgeBackwards([](double ratio) { return ratio; });
  EXPECT_NEAR(uncapped.accepted, 4. / 3, 1e-12);
  EXPECT_NEAR(total_variation(uncapped), 1. / 9, 1e-12);

  double recursion = 1, ratio = 1, largest = 1;
  for (const double factor : {.5, 1.8, 3., .2, 4., .9, 1.3, .4}) {
    recursion = std::min(1.0, recursion * factor);
    ratio *= factor;
    largest = std::max(largest, ratio);
    EXPECT_NEAR(recursion, ratio / largest, 1e-12);
  }
}

}  // namespace
}  // namespace outrider
