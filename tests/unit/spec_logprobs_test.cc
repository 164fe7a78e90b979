#include "common/spec/distribution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "common/spec/controls.h"
#include "tests/unit/spec_testing.h"

namespace outrider {
namespace {

TEST(LogProbabilities, AreSortedWithTiesToTheLowestIdsAndLeaveOutTheImpossible) {
  const TestRow row = {2, 4, 0, 4, 6};
  const auto top = TopLogProbabilities(row, 3);
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].token, 4);
  EXPECT_EQ(top[1].token, 1);
  EXPECT_EQ(top[2].token, 3);
  EXPECT_DOUBLE_EQ(top[0].log_probability, std::log(6.0 / 16));
  EXPECT_EQ(TopLogProbabilities(row, 9).size(), 4u);
  EXPECT_TRUE(TopLogProbabilities(row, 0).empty());
}

TEST(LogProbabilities, OfAGreedyRowAreThoseOfOneToken) {
  const std::vector<float> logits = {1, 3, 3};
  const auto top = TopLogProbabilities(Greedy(logits), 5);
  ASSERT_EQ(top.size(), 1u);
  EXPECT_EQ(top[0].token, 1);
  EXPECT_EQ(top[0].log_probability, 0);
}

TEST(LogProbabilities, BeforeAndAfterControlsThatDoNothingAgree) {
  std::mt19937 random(1);
  std::vector<float> logits(3001);
  for (float& l : logits) l = std::normal_distribution<float>(-40, 4)(random);
  double sum = 0;
  for (float l : logits) sum += std::exp(static_cast<double>(l));
  EXPECT_NEAR(LogSumExp(logits), std::log(sum), 1e-6);
  const auto before = TopLogProbabilities(logits, 20);
  const auto after = TopLogProbabilities(*Controls::Create({}, 0, 3001)->Apply({}, logits), 20);
  ASSERT_EQ(before.size(), 20u);
  ASSERT_EQ(after.size(), 20u);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(before[i].token, after[i].token);
    EXPECT_NEAR(before[i].log_probability, after[i].log_probability, 1e-5);
  }
}

}  // namespace
}  // namespace outrider
