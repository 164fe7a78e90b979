#include "coordinator/rounds/draft_length_policy.h"

#include <gtest/gtest.h>

#include <cmath>

#include <random>

#include "common/spec/analysis.h"

namespace outrider {
namespace {

// A machine whose times are known, and a draft that is right with probability alpha.
struct Machine {
  double verify_us = 200, row_us = 5, step_us = 30, step_sequence_us = 2, wire_us = 60;
  double alpha = 0.8;
  int batch = 1;

  RoundTimes Times(int k) const {
    RoundTimes times;
    const auto micros = [](double us) {
      return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(us * 1e-6));
    };
    const auto fill = [&](double us, int rows, v1::ItemTiming& timing) {
      timing.set_compute_us(static_cast<uint32_t>(us));
      timing.set_batch_sequences(static_cast<uint32_t>(batch));
      timing.set_batch_rows(static_cast<uint32_t>(rows));
    };
    const int rows = batch * (k + 1);
    fill(verify_us + row_us * rows, rows, times.verify_server);
    times.verify = micros(verify_us + row_us * rows + wire_us);
    if (k > 0) {
      const double draft = k * (step_us + step_sequence_us * batch);
      fill(draft, batch, times.draft_server);
      times.draft = micros(draft + wire_us);
    }
    return times;
  }
  // Of the whole machine: a batch of rounds at a time.
  double TokensPerSecond(int k) const {
    const RoundTimes times = Times(k);
    const double shared = Seconds(times.verify) + Seconds(times.draft);
    return batch * ExpectedTokens(alpha, k) / shared;
  }
  double Best(int most) const {
    double best = 0;
    for (int k = 0; k <= most; ++k) best = std::max(best, TokensPerSecond(k));
    return best;
  }
};

class DraftLengthPolicyTest : public ::testing::Test {
 protected:
  static constexpr int kMost = 10;

  static Request MakeRequest() {
    Request request;
    request.prompt = {1};
    request.max_tokens = 1 << 20;
    request.draft_tokens = kMost;
    request.adaptive = true;
    request.params.mutable_sampling()->set_temperature(0);
    request.params.set_rule(v1::RULE_TOKEN);
    return request;
  }

  // Runs rounds and returns the rate of the second half, as a share of the best fixed K's.
  double ShareOfBest(const Machine& machine, int rounds = 2000) {
    for (int i = 0; i < machine.batch; ++i) policy_.Begin();
    double share = 0;
    for (int round = 0; round < rounds; ++round) {
      const int k = policy_.DraftTokens(generation_);
      last_k_ = k;
      if (k == 0 && round >= rounds / 2) ++plain_;
      int accepted = 0;
      while (accepted < k && uniform_(random_) < machine.alpha) ++accepted;
      Proposal draft;
      for (int i = 0; i < k; ++i) AppendToChain(2, {}, draft);
      Verdict verdict;
      verdict.path = ChainPath(static_cast<size_t>(accepted));
      verdict.token = 2;
      if (k > 0) verdict.kind = accepted == k ? Verdict::Kind::kBonus : Verdict::Kind::kCorrected;
      const bool prompt = generation_.emitted() == 0;
      generation_.Commit(draft, verdict);
      if (!prompt) policy_.OnRound(generation_, k, accepted, machine.Times(k));
      if (round >= rounds / 2) share += machine.TokensPerSecond(k) / machine.Best(kMost) / (rounds / 2);
    }
    for (int i = 0; i < machine.batch; ++i) policy_.End();
    return share;
  }

  std::unique_ptr<Tokenizer> tokenizer_ = *Tokenizer::Load("tests/data/text/gpt2-small.tokenizer.json");
  Generation generation_{MakeRequest(), tokenizer_.get(), Clock::now()};
  DraftLengthPolicy policy_;
  std::mt19937 random_{5};
  std::uniform_real_distribution<double> uniform_;
  int last_k_ = 0;
  int plain_ = 0;  // rounds, of those whose rate counts
};

TEST_F(DraftLengthPolicyTest, ComesCloseToTheBestFixedLength) {
  for (const Machine& machine :
       {Machine{.alpha = 0.9}, Machine{.alpha = 0.6}, Machine{.row_us = 40, .alpha = 0.8},
        Machine{.step_us = 100, .alpha = 0.7}, Machine{.wire_us = 400, .alpha = 0.8}}) {
    EXPECT_GT(ShareOfBest(machine, 6000), 0.96) << machine.alpha << " " << machine.step_us;
  }
}

TEST_F(DraftLengthPolicyTest, DropsToPlainDecodingWhenDraftingDoesNotPayAndComesBack) {
  EXPECT_GT(ShareOfBest({.step_us = 400, .alpha = 0.5}, 6000), 0.98);
  EXPECT_EQ(last_k_, 0);
  EXPECT_GT(ShareOfBest({.step_us = 20, .alpha = 0.9}, 20000), 0.9);
  EXPECT_GT(last_k_, 2);
}

TEST_F(DraftLengthPolicyTest, AGenerationAloneTriesPlainRoundsNowAndThen) {
  EXPECT_GT(ShareOfBest({.alpha = 0.9}, 8192), 0.96);
  EXPECT_EQ(plain_, 4096 / 256);
  plain_ = 0;
  ShareOfBest({.alpha = 0.9, .batch = 4}, 8192);
  EXPECT_EQ(plain_, 0) << "it would wait for the drafts of the others";
}

TEST_F(DraftLengthPolicyTest, DropsUnderLoadWhereRowsDecide) {
  const Machine loaded{.row_us = 45, .step_sequence_us = 15, .alpha = 0.7, .batch = 64};
  EXPECT_GT(ShareOfBest(loaded, 6000), 0.96);
  EXPECT_EQ(last_k_, 0);
}

TEST_F(DraftLengthPolicyTest, DropsWhenProposalsFailAndComesBackWhenTheyDoNot) {
  const Machine machine{.alpha = 0.9};
  ShareOfBest(machine, 2000);
  EXPECT_GT(last_k_, 2);
  policy_.Begin();
  RoundTimes failed = machine.Times(0);
  failed.draft = std::chrono::milliseconds(150);
  for (int i = 0; i < 3; ++i) policy_.OnDraftFailed(generation_, failed);
  EXPECT_EQ(policy_.DraftTokens(generation_), 0) << "a failure costs hundreds of plain rounds";
  policy_.End();
  ShareOfBest(machine, 2000);
  EXPECT_GT(last_k_, 2);
}

TEST_F(DraftLengthPolicyTest, ADraftThatNeverGivesAnythingIsNotAskedForLong) {
  const Machine machine;
  policy_.Begin();
  Verdict verdict;
  verdict.token = 2;
  generation_.Commit({}, verdict);
  RoundTimes failed = machine.Times(0);
  failed.draft = std::chrono::milliseconds(1);
  int asked = 0;
  for (int round = 0; round < 400; ++round) {
    if (policy_.DraftTokens(generation_) > 0) {
      ++asked;
      policy_.OnDraftFailed(generation_, failed);
    } else {
      policy_.OnRound(generation_, 0, 0, machine.Times(0));
    }
  }
  policy_.End();
  EXPECT_LT(asked, 20);
}

TEST_F(DraftLengthPolicyTest, FollowsASequenceThatBecomesEasier) {
  ShareOfBest({.alpha = 0.3}, 2000);
  const int hard = last_k_;
  ShareOfBest({.alpha = 0.95}, 2000);
  EXPECT_GT(last_k_, hard + 2);
}

TEST_F(DraftLengthPolicyTest, DraftsNothingForThePromptAndNeverPastTheEnd) {
  EXPECT_EQ(policy_.DraftTokens(generation_), 0);
  Request request = MakeRequest();
  request.max_tokens = 3;
  request.adaptive = false;
  Generation generation(std::move(request), tokenizer_.get(), Clock::now());
  Verdict verdict;
  verdict.token = 2;
  generation.Commit({}, verdict);
  EXPECT_EQ(policy_.DraftTokens(generation), 1);
  generation.Commit({}, verdict);
  EXPECT_EQ(policy_.DraftTokens(generation), 0);
}

TEST(LinearTime, FindsWhatDoesAndWhatDoesNotDependOnTheSize) {
  LinearTime time;
  for (int i = 0; i < 200; ++i) time.Observe(1 + i % 16, 200e-6 + 40e-6 * (1 + i % 16));
  EXPECT_NEAR(time.fixed(), 200e-6, 1e-5);
  EXPECT_NEAR(time.per_unit(), 40e-6, 1e-6);
}

TEST(LinearTime, ForgetsWhatWasLongAgo) {
  LinearTime time;
  for (int i = 0; i < 3000; ++i) time.Observe(1 + i % 4, 1e-3);
  for (int i = 0; i < 3000; ++i) time.Observe(1 + i % 4, 5e-3);
  EXPECT_NEAR(time.fixed() + 2.5 * time.per_unit(), 5e-3, 1e-5);
}

TEST(LinearTime, IsNeverNegativeAndSurvivesOneSize) {
  LinearTime time;
  for (int i = 0; i < 50; ++i) time.Observe(3, 1e-3);
  EXPECT_GE(time.fixed(), 0);
  EXPECT_GE(time.per_unit(), 0);
  EXPECT_NEAR(time.fixed() + 3 * time.per_unit(), 1e-3, 1e-9);
  for (int i = 0; i < 50; ++i) time.Observe(9, 1e-5);  // less for more
  EXPECT_GE(time.fixed(), 0);
  EXPECT_GE(time.per_unit(), 0);
}

}  // namespace
}  // namespace outrider
