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

  void Observe(int k, int running = 1) {
    Proposal chain;
    for (int i = 0; i < k; ++i) AppendToChain(1, {}, chain);
    const RoundTimes times = Times(k);
    costs_.ObserveVerify(times, running);
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
                         .times = times});
  }

  RoundCosts costs_;
};

TEST_F(RoundCostsTest, AreLinearInRowsAndTokens) {
  for (int i = 0; i < 600; ++i) Observe(i % 8);
  for (const int k : {0, 3, 12}) EXPECT_NEAR(costs_.Verify(k, 1), 1e-6 * (265 + 5 * k), 2e-6) << k;
  for (const int k : {1, 4, 12}) EXPECT_NEAR(costs_.Propose(k, 1), 1e-6 * (100 + 30 * k), 2e-6) << k;
  EXPECT_NEAR(costs_.first_step(), 40e-6, 2e-6);
  EXPECT_NEAR(costs_.token(), 30e-6, 1e-6);
}

TEST_F(RoundCostsTest, OfTreesAreThoseOfTheirRowsAndLevels) {
  for (int i = 0; i < 600; ++i) Observe(i % 8);
  const TreeCosts tree = costs_.tree();
  EXPECT_NEAR(tree.round, 1e-6 * (260 + 60 + 40), 4e-6);
  EXPECT_NEAR(tree.row, 5e-6, 1e-6);
  EXPECT_NEAR(tree.level, 30e-6, 1e-6);
}

TEST_F(RoundCostsTest, MessagesAreSharedByGenerationsInProgress) {
  for (int i = 0; i < 600; ++i) Observe(i % 8);
  EXPECT_NEAR(costs_.Verify(0, 1) - costs_.Verify(0, 6), 1e-6 * (60 - 10), 5e-6);
}

TEST_F(RoundCostsTest, UnderLoadWhatIsNotFixedCountsWithTheRows) {
  for (int i = 0; i < 600; ++i) Observe(i % 8);
  RoundTimes loaded;
  loaded.verify_server.set_compute_us(200 + 64 * 20);
  loaded.verify_server.set_batch_rows(64);
  loaded.verify_server.set_batch_sequences(64);
  for (int i = 0; i < 3000; ++i) costs_.ObserveVerify(loaded, 64);
  EXPECT_NEAR(costs_.Verify(3, 64) - costs_.Verify(2, 64), 20e-6, 1e-6);
}

TEST_F(RoundCostsTest, ADraftThatGivesNothingIsRememberedAndForgotten) {
  for (int i = 0; i < 100; ++i) Observe(4);
  RoundTimes late = Times(0);
  late.draft = Micros(5000);
  for (int i = 0; i < 50; ++i) costs_.ObserveFailure(late);
  EXPECT_LT(costs_.proposed(), 0.6);
  EXPECT_NEAR(costs_.Failure(1), 5000e-6, 1e-6);
  EXPECT_NEAR(costs_.Failure(4), 1250e-6, 1e-6);
  costs_.AgeDraft(200);
  for (int i = 0; i < 20; ++i) Observe(4);
  EXPECT_GT(costs_.proposed(), 0.9);
}

}  // namespace
}  // namespace outrider
