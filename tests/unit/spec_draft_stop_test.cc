#include "common/spec/proposal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/unit/spec_testing.h"

namespace outrider {
namespace {

Proposal Drafted(std::initializer_list<float> confidences) {
  Proposal proposal;
  for (float confidence : confidences) {
    AppendToChain(0, {}, proposal);
    proposal.back().confidence = confidence;
  }
  return proposal;
}

TEST(DraftStop, ConfidenceComparesTheTwoLikeliestTokens) {
  EXPECT_FLOAT_EQ(Confidence(TestRow({1, 4, 0, 3})), 4.0f / 7);
  EXPECT_FLOAT_EQ(Confidence(TestRow({3, 1, 1})), 0.75f);
  EXPECT_FLOAT_EQ(Confidence(TestRow({1, 1, 3})), 0.75f);
  EXPECT_FLOAT_EQ(Confidence(TestRow({0, 2, 2})), 0.5f);
  EXPECT_FLOAT_EQ(Confidence(TestRow({0, 2, 0})), 1);
}

TEST(DraftStop, AtTemperatureZeroItIsThatOfTheSoftmax) {
  const float removed = -std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {0, std::log(3.0f), removed, -1};
  EXPECT_FLOAT_EQ(Confidence(Greedy(logits)), 0.75f);
  const std::vector<float> one_left = {removed, 800, removed};
  EXPECT_FLOAT_EQ(Confidence({.point_mass = 1, .logits = one_left}), 1);
}

TEST(DraftStop, BinsAreEquallyWideAndTakeAnything) {
  EXPECT_EQ(ConfidenceBin(0.5f, 4), 0);
  EXPECT_EQ(ConfidenceBin(0.62f, 4), 0);
  EXPECT_EQ(ConfidenceBin(0.63f, 4), 1);
  EXPECT_EQ(ConfidenceBin(1, 4), 3);
  EXPECT_EQ(ConfidenceBin(-3, 4), 0);
  EXPECT_EQ(ConfidenceBin(7, 4), 3);
  EXPECT_EQ(ConfidenceBin(std::numeric_limits<float>::infinity(), 4), 3);
  EXPECT_EQ(ConfidenceBin(std::numeric_limits<float>::quiet_NaN(), 4), 0);
}

TEST(DraftStop, EndsOnceTheChanceThatAllStandIsTooSmall) {
  const DraftStop stop = {.acceptance = {0.5, 0.8}, .least = 0.35f};
  EXPECT_FALSE(EndsDraft(stop, Drafted({0.6f})));
  EXPECT_FALSE(EndsDraft(stop, Drafted({0.6f, 0.9f}))) << ".40";
  EXPECT_TRUE(EndsDraft(stop, Drafted({0.6f, 0.9f, 0.9f}))) << ".32";
  EXPECT_TRUE(EndsDraft(stop, Drafted({0.6f, 0.6f}))) << ".25";
  EXPECT_FALSE(EndsDraft(stop, Drafted({0.9f, 0.9f, 0.9f}))) << ".51";
}

TEST(DraftStop, NothingKnownOfAcceptanceNeverEndsADraft) {
  EXPECT_FALSE(EndsDraft({.least = 2}, Drafted({0, 0, 0})));
}

}  // namespace
}  // namespace outrider
