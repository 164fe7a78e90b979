#include "common/spec/analysis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/spec_testing.h"

namespace outrider {
namespace {

TEST(Analysis, DivergenceIsOneMinusTheOverlap) {
  std::mt19937 random(1);
  for (int round = 0; round < 100; ++round) {
    std::vector<float> p(20), q(20);
    for (float& w : p) w = static_cast<float>(random() % 100);
    for (float& w : q) w = static_cast<float>(random() % 100);
    const TestRow row(p);
    EXPECT_NEAR(DivergenceLk(row, Dense(q)), 1 - Overlap(row, Dense(q)), 1e-12);
  }
  EXPECT_EQ(DivergenceLk(TestRow{1, 1, 0, 0}, Dense({0, 0, 1, 1})), 1);
  EXPECT_EQ(DivergenceLk(TestRow{1, 1, 0, 0}, Dense({1, 1, 0, 0})), 0);
}

// Table 1 of arXiv 2211.17192: operations and speed for free drafting.
struct FreeDrafting {
  double alpha;
  int k;
  double operations, speed;
};
constexpr FreeDrafting kTable1[] = {{.6, 2, 1.53, 1.96}, {.7, 3, 1.58, 2.53}, {.8, 2, 1.23, 2.44},
                                    {.8, 5, 1.63, 3.69}, {.9, 2, 1.11, 2.71}, {.9, 10, 1.60, 6.86}};

// Table 4 of the same paper: expected gains of T5 drafts on English to German and on CNN/DailyMail.
struct Expected {
  const char* task;
  const char* draft;
  int temperature, k;
  double alpha, c, expected;
};
constexpr Expected kTable4[] = {
    {"EnDe", "small", 0, 7, .75, .02, 3.2},   {"EnDe", "base", 0, 7, .80, .04, 3.3},
    {"EnDe", "large", 0, 7, .82, .11, 2.5},   {"EnDe", "small", 1, 7, .62, .02, 2.3},
    {"EnDe", "base", 1, 5, .68, .04, 2.4},    {"EnDe", "large", 1, 3, .71, .11, 2.0},
    {"CNN/DM", "small", 0, 5, .65, .02, 2.4}, {"CNN/DM", "base", 0, 5, .73, .04, 2.6},
    {"CNN/DM", "large", 0, 3, .74, .11, 2.0}, {"CNN/DM", "small", 1, 5, .53, .02, 1.9},
    {"CNN/DM", "base", 1, 3, .55, .04, 1.8},  {"CNN/DM", "large", 1, 3, .56, .11, 1.6}};

// The speedup if a draft step takes a tenth of the target's.
constexpr double kAlphas[] = {.5, .7, .8, .9, .95};
constexpr int kLengths[] = {2, 3, 5, 8};
constexpr double kAtATenth[5][4] = {{1.46, 1.44, 1.31, 1.11},
                                    {1.83, 1.95, 1.96, 1.78},
                                    {2.03, 2.27, 2.46, 2.41},
                                    {2.26, 2.65, 3.12, 3.40},
                                    {2.38, 2.85, 3.53, 4.11}};

TEST(Analysis, ReproducesTable1) {
  for (const FreeDrafting& row : kTable1) {
    EXPECT_NEAR(OperationsFactor(row.alpha, row.k, 0), row.operations, .005) << row.alpha << " " << row.k;
    EXPECT_NEAR(WalltimeGain(row.alpha, row.k, 0), row.speed, .006) << row.alpha << " " << row.k;
  }
}

TEST(Analysis, ReproducesTheExpectedRowsOfTable4) {
  for (const Expected& row : kTable4) {
    EXPECT_NEAR(WalltimeGain(row.alpha, row.k, row.c), row.expected, .1) << row.task << " " << row.draft;
  }
  EXPECT_NEAR(WalltimeGain(.75, 7, .02), 3.16, .005);
  EXPECT_NEAR(WalltimeGain(.65, 5, .02), 2.40, .005);
}

TEST(Analysis, ReproducesTheSpeedUpsAtATenthOfTheTarget) {
  for (int i = 0; i < 5; ++i) {
    for (int j = 0; j < 4; ++j) {
      EXPECT_NEAR(WalltimeGain(kAlphas[i], kLengths[j], .1), kAtATenth[i][j], .01);
    }
  }
}

template <class... Args>
std::string Line(const char* format, Args... args) {
  char line[200];
  std::snprintf(line, sizeof(line), format, args...);
  return line;
}

// The tables in the documentation are copies, so check them against the code.
TEST(Analysis, TheTablesInTheDocumentationAreWhatTheCodeGives) {
  std::ifstream file("docs/papers.md");
  const std::string page(std::istreambuf_iterator<char>(file), {});
  std::string table1, table4, at_a_tenth;
  for (const FreeDrafting& row : kTable1) {
    table1 += Line("| %.1f | %d | %.2f | %.2f |\n", row.alpha, row.k, OperationsFactor(row.alpha, row.k, 0),
                   WalltimeGain(row.alpha, row.k, 0));
  }
  const auto gain = [](const Expected& row) { return WalltimeGain(row.alpha, row.k, row.c); };
  for (const int row : {0, 1, 2, 6, 7, 8}) {
    const Expected &greedy = kTable4[row], &sampled = kTable4[row + 3];
    table4 += Line("| %s | %s | %.2f | %d, %d | %.2f, %.2f | %.2f (%.1f), %.2f (%.1f) |\n", greedy.task,
                   greedy.draft, greedy.c, greedy.k, sampled.k, greedy.alpha, sampled.alpha, gain(greedy),
                   greedy.expected, gain(sampled), sampled.expected);
  }
  for (double alpha : kAlphas) {
    at_a_tenth += Line("| %.2f |", alpha);
    for (int k : kLengths) at_a_tenth += Line(" %.2f |", WalltimeGain(alpha, k, .1));
    at_a_tenth += Line(" %d | %.2f | %.1f |\n", BestK(alpha, .1, 16),
                       WalltimeGain(alpha, BestK(alpha, .1, 16), .1), OracleBound(alpha));
  }
  EXPECT_THAT(page, testing::HasSubstr(table1));
  EXPECT_THAT(page, testing::HasSubstr(table4));
  EXPECT_THAT(page, testing::HasSubstr(at_a_tenth));
}

TEST(Analysis, ExpectedTokensIsTheMeanOfTheCappedGeometricVariable) {
  for (double alpha : {0.0, .3, .9}) {
    for (int k : {0, 1, 4, 9}) {
      double mean = 0;
      for (int i = 0; i < k; ++i) mean += (i + 1) * std::pow(alpha, i) * (1 - alpha);
      mean += (k + 1) * std::pow(alpha, k);
      EXPECT_NEAR(ExpectedTokens(alpha, k), mean, 1e-12);
      EXPECT_LT(ExpectedTokens(alpha, k), OracleBound(alpha) + 1e-12);
    }
  }
}

TEST(Analysis, BestKIsZeroExactlyWhereSpeculationDoesNotPay) {
  for (double alpha = .05; alpha < 1; alpha += .05) {
    for (double c : {0.01, .1, .3, .72, .91}) {
      const int k = BestK(alpha, c, 30);
      EXPECT_EQ(k > 0, alpha > c) << alpha << " " << c;
      for (int other = 0; other <= 30; ++other) {
        EXPECT_GE(WalltimeGain(alpha, k, c), WalltimeGain(alpha, other, c));
      }
      // Corollary 3.9.
      if (alpha > c) {
        EXPECT_GE(WalltimeGain(alpha, k, c), GuaranteedGain(alpha, c) - 1e-12);
      }
    }
  }
}

// Computed by hand: 1 + .8 + .64 + .512 tokens a round at K = 3, whose drafting takes 3 * .385.
TEST(Analysis, PerfectOverlapGivesAsManyTokensForTheSlowerOfTheTwo) {
  EXPECT_EQ(BestK(.8, .385, 8), 2);
  EXPECT_NEAR(WalltimeGain(.8, 2, .385), 2.44 / 1.77, 1e-12);  // 1.38
  EXPECT_EQ(BestOverlapK(.8, .385, 0, 8), 3);
  EXPECT_NEAR(OverlapGain(.8, 3, .385, 0), 2.952 / 1.155, 1e-12);  // 2.56
  EXPECT_NEAR(OverlapGain(.8, 2, .385, 0), 2.44, 1e-12);
  EXPECT_NEAR(OverlapGain(.8, 3, .385, .4), 2.952 / 1.4, 1e-12);
  EXPECT_EQ(BestOverlapK(.8, .385, 2, 8), 8) << "a longer wait is worth more tokens";
  EXPECT_EQ(OverlapGain(.8, 0, .385, 0), 1);
}

TEST(Analysis, RunAheadWithoutHitsIsTheorem38AndItsWaits) {
  for (int k : {0, 1, 4}) {
    EXPECT_NEAR(RunAheadGain(.8, k, .385, 0, 0), WalltimeGain(.8, k, .385), 1e-12);
    EXPECT_NEAR(RunAheadGain(.8, k, .385, 0, .1), ExpectedTokens(.8, k) / (1 + k * .385 + .4), 1e-12);
  }
}

// At K = 2, three draft steps take longer than a target step, but two do not: 2 d + .64 * 1.155 + .36.
TEST(Analysis, RunAheadCostsAHitTheSlowerOfTargetAndDraft) {
  EXPECT_NEAR(RunAheadGain(.8, 2, .385, 1, 0), 2.44 / 1.0992, 1e-12);
  EXPECT_NEAR(RunAheadGain(.8, 2, .385, .7, 0), 2.44 / (.7 * 1.0992 + .3 * 1.77), 1e-12);
  EXPECT_NEAR(RunAheadGain(.8, 2, .385, .8, .1), 2.44 / (.8 * 1.2992 + .2 * 2.17), 1e-12);
}

TEST(Analysis, RunAheadIsNeverFasterThanPerfectOverlap) {
  for (double c : {.01, .385, 1.0}) {
    for (int k : {1, 2, 5, 12}) {
      for (double delay : {0.0, .1, 2.0}) {
        EXPECT_LE(RunAheadGain(.8, k, c, 1, delay), OverlapGain(.8, k, c, 2 * delay) + 1e-12);
      }
    }
  }
}

TEST(Analysis, CostsOfPlainDecodingAreOne) {
  EXPECT_EQ(OperationsFactor(.7, 0, .1), 1);
  EXPECT_EQ(MemoryTrafficFactor(.7, 0, .1), 1);
  EXPECT_NEAR(MemoryTrafficFactor(.8, 4, 0), 1 / ExpectedTokens(.8, 4), 1e-15);
  EXPECT_NEAR(MemoryTrafficFactor(.8, 4, .1), 1.4 / ExpectedTokens(.8, 4), 1e-15);
}

}  // namespace
}  // namespace outrider
