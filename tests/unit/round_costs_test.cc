// The times of rounds, as learnt from measured rounds.
#include "coordinator/policy/measured_rounds.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(LinearTime, FindsWhatDoesAndWhatDoesNotDependOnTheSize) {
  LinearTime time(0.2);
  for (int i = 0; i < 200; ++i) time.Observe(1 + i % 16, 200e-6 + 40e-6 * (1 + i % 16));
  EXPECT_NEAR(time.fixed(), 200e-6, 1e-5);
  EXPECT_NEAR(time.per_unit(), 40e-6, 1e-6);
}

TEST(LinearTime, ForgetsWhatWasLongAgo) {
  LinearTime time(0.2);
  for (int i = 0; i < 3000; ++i) time.Observe(1 + i % 4, 1e-3);
  for (int i = 0; i < 3000; ++i) time.Observe(1 + i % 4, 5e-3);
  EXPECT_NEAR(time.fixed() + 2.5 * time.per_unit(), 5e-3, 1e-5);
}

TEST(LinearTime, IsNeverNegativeAndSurvivesOneSize) {
  LinearTime time(0.2);
  for (int i = 0; i < 50; ++i) time.Observe(3, 1e-3);
  EXPECT_GE(time.fixed(), 0);
  EXPECT_GE(time.per_unit(), 0);
  EXPECT_NEAR(time.fixed() + 3 * time.per_unit(), 1e-3, 1e-9);
  for (int i = 0; i < 50; ++i) time.Observe(9, 1e-5);  // less time for more rows
  EXPECT_GE(time.fixed(), 0);
  EXPECT_GE(time.per_unit(), 0);
}

Clock::duration Micros(double us) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(us * 1e-6));
}

// As on a CPU: up to 8 rows cost little, each further one much.
double StepOf(double rows) { return rows <= 8 ? 2e-3 + 0.1e-3 * rows : 2.8e-3 + 0.4e-3 * (rows - 8); }

TEST(StepTime, IsLinearOnlyLocally) {
  StepTime time;
  for (int i = 0; i < 400; ++i) {
    for (const int rows : {1, 4, 5, 8, 33, 64}) time.Observe(rows, StepOf(rows));
  }
  for (const int rows : {1, 3, 5, 7, 40, 60})
    EXPECT_NEAR(time.Seconds(rows), StepOf(rows), 0.03 * StepOf(rows)) << rows;
}

TEST(StepTime, FollowsFromTheNearestRowsWhereNothingIsKnown) {
  StepTime time;
  EXPECT_EQ(time.Seconds(1), 0);
  for (int i = 0; i < 400; ++i) {
    for (const int rows : {5, 8, 33, 64}) time.Observe(rows, StepOf(rows));
  }
  EXPECT_NEAR(time.Seconds(12), StepOf(12), 0.25 * StepOf(12));
  EXPECT_NEAR(time.Seconds(3), StepOf(3), 0.12 * StepOf(3));
  EXPECT_NEAR(time.Seconds(1000), StepOf(1000), 0.02 * StepOf(1000));
}

// Otherwise K stays below a number of rows whose only passes were slow by chance.
TEST(StepTime, AFewSlowPassesAreNotBelieved) {
  StepTime time;
  for (int i = 0; i < 400; ++i) time.Observe(1 + i % 4, StepOf(1 + i % 4));
  for (int i = 0; i < 2; ++i) time.Observe(5, 3 * StepOf(5));
  for (int i = 0; i < 100; ++i) time.Observe(1 + i % 4, StepOf(1 + i % 4));
  EXPECT_NEAR(time.Seconds(4), StepOf(4), 0.05 * StepOf(4));
  EXPECT_NEAR(time.Seconds(5), StepOf(5), 0.5 * StepOf(5));
}

TEST(LoadChoice, TakesWhatGivesMoreTokensInTheSameTime) {
  constexpr int kRunning = 8, kRounds = 40'000;
  LoadChoice choice;
  const auto share_plain = [&](int drafted_tokens) {
    int plain = 0;
    for (int round = 0; round < kRounds; ++round) {
      plain += choice.plain() ? 1 : 0;
      choice.Observe(choice.plain() ? 4e-3 : 8e-3, choice.plain() ? 1 : drafted_tokens, kRunning);
    }
    return static_cast<double>(plain) / kRounds;
  };
  EXPECT_GT(share_plain(1), 0.9);
  EXPECT_LT(share_plain(3), 0.2) << "though it must notice first";
  EXPECT_GT(share_plain(1), 0.8);
}

// A machine whose times are 200 us + 5 us for each row of a verification, 40 us + 30 us for each token of a
// proposal, and 60 us for the messages of either.
class RoundCostsTest : public ::testing::Test {
 protected:
  static RoundTimes Times(int k) {
    RoundTimes times;
    times.verify_server.set_compute_us(static_cast<uint32_t>(200 + 5 * (k + 1)));
    times.verify_server.set_batch_rows(static_cast<uint32_t>(k + 1));
    times.verify_server.set_batch_sequences(1);
    times.verify = Micros(60 + times.verify_server.compute_us());
    if (k == 0) return times;
    times.draft_server.set_compute_us(static_cast<uint32_t>(40 + 30 * k));
    times.draft_server.set_batch_sequences(1);
    times.draft = Micros(60 + times.draft_server.compute_us());
    return times;
  }

  void Observe(int k, int running = 1, uint32_t catching_up_us = 0) {
    Proposal chain;
    for (int i = 0; i < k; ++i) AppendToChain(1, {}, chain);
    RoundTimes times = Times(k);
    times.draft_server.set_compute_us(times.draft_server.compute_us() + catching_up_us);
    times.draft += Micros(catching_up_us);
    verify_.Observe(times, running);
    if (k == 0) return;
    costs_.ObserveChain({.generation = nullptr,
                         .proposal = &chain,
                         .verdict = nullptr,
                         .drafter = v1::DRAFTER_KIND_MODEL,
                         .draft_status = DraftStatus::kUsable,
                         .chosen = k,
                         .emitted = 1,
                         .running = running,
                         .proposal_bytes = 0,
                         .catches_up = catching_up_us > 0,
                         .times = times});
  }

  VerifyCosts verify_;
  DraftCosts costs_;
};

TEST_F(RoundCostsTest, AreLinearInRowsAndTokens) {
  for (int i = 0; i < 600; ++i) Observe(i % 8);
  for (const int k : {0, 3, 12}) EXPECT_NEAR(verify_.Share(k, 1), 1e-6 * (265 + 5 * k), 2e-6) << k;
  for (const int k : {1, 4, 12}) EXPECT_NEAR(costs_.Propose(k, 1), 1e-6 * (100 + 30 * k), 2e-6) << k;
  EXPECT_NEAR(costs_.first_step(), 40e-6, 2e-6);
  EXPECT_NEAR(costs_.token(), 30e-6, 1e-6);
}

// A draft that is tried now and then computes all tokens since its last proposal first.
TEST_F(RoundCostsTest, WhatCatchingUpTakesIsNotTheCostOfATokenOnceThatIsKnown) {
  Observe(1, 1, 5000);
  EXPECT_GT(costs_.Propose(1, 1), 5000e-6) << "nothing else is known";
  for (int i = 0; i < 2000; ++i) Observe(1 + i % 4);
  const double known = costs_.Propose(2, 1);
  for (int i = 0; i < 200; ++i) Observe(2, 1, 5000);
  EXPECT_EQ(costs_.Propose(2, 1), known);
}

TEST_F(RoundCostsTest, OfTreesAreThoseOfTheirRowsAndLevels) {
  for (int i = 0; i < 600; ++i) Observe(i % 8);
  const TreeCosts tree = costs_.OfTrees(verify_);
  EXPECT_NEAR(tree.round, 1e-6 * (60 + 60 + 40), 4e-6);
  EXPECT_NEAR(tree.verify->Seconds(4), 220e-6, 2e-6);
  EXPECT_NEAR(tree.level, 30e-6, 1e-6);
}

TEST_F(RoundCostsTest, MessagesAreSharedByGenerationsInProgress) {
  for (int i = 0; i < 600; ++i) Observe(i % 8);
  EXPECT_NEAR(verify_.Share(0, 1) - verify_.Share(0, 6), 1e-6 * (60 - 10), 5e-6);
}

TEST_F(RoundCostsTest, LoadChangesNothingOfWhatAGenerationAloneTakes) {
  for (int i = 0; i < 600; ++i) Observe(i % 8);
  RoundTimes loaded;
  for (int i = 0; i < 3000; ++i) {
    loaded.verify_server.set_batch_sequences(64);
    loaded.verify_server.set_batch_rows(i % 2 == 0 ? 64 : 128);
    loaded.verify_server.set_compute_us(200 + loaded.verify_server.batch_rows() * 20);
    verify_.Observe(loaded, 64);
  }
  EXPECT_NEAR(verify_.Share(1, 64) - verify_.Share(0, 64), 20e-6, 1e-6);
  EXPECT_NEAR(verify_.Share(0, 1), 265e-6, 2e-6);
  EXPECT_NEAR(verify_.Share(3, 1), 280e-6, 5e-6);
}

TEST_F(RoundCostsTest, ADraftThatGivesNothingIsRememberedAndForgotten) {
  for (int i = 0; i < 100; ++i) Observe(4);
  RoundTimes late = Times(0);
  late.draft = Micros(5000);
  for (int i = 0; i < 50; ++i) costs_.ObserveFailure(late);
  EXPECT_LT(costs_.proposed(), 0.6);
  EXPECT_NEAR(costs_.Failure(1), 5000e-6, 1e-6);
  EXPECT_NEAR(costs_.Failure(4), 1250e-6, 1e-6);
  costs_.Age(200);
  for (int i = 0; i < 20; ++i) Observe(4);
  EXPECT_GT(costs_.proposed(), 0.9);
}

}  // namespace
}  // namespace outrider
