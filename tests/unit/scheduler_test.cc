#include "common/engine/scheduler.h"

#include <gmock/gmock.h>

#include <numeric>
#include <random>

#include "common/engine/prompt_pace.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

std::vector<int> Plan(std::vector<PendingRows> pending, int rows, int logit_rows = 1000,
                      int prefill_rows = 1 << 20) {
  return PlanStep(pending, {rows, logit_rows, prefill_rows});
}

TEST(PlanStep, TakesEverythingThatFits) {
  EXPECT_THAT(Plan({{1, 1}, {6, 6}, {20, 1}}, 32), ElementsAre(1, 6, 20));
}

TEST(PlanStep, ServesDecodingBeforePrompts) {
  EXPECT_THAT(Plan({{500, 1}, {6, 6}, {1, 1}}, 64), ElementsAre(57, 6, 1));
}

TEST(PlanStep, CutsAPromptButKeepsItsWantedRowsTogether) {
  EXPECT_THAT(Plan({{66, 6}}, 64), ElementsAre(60));
  EXPECT_THAT(Plan({{6, 6}}, 64), ElementsAre(6));
}

TEST(PlanStep, LetsLaterOnesWaitWhenTheBudgetIsUsedUp) {
  EXPECT_THAT(Plan({{6, 6}, {6, 6}, {6, 6}}, 12), ElementsAre(6, 6, 0));
}

TEST(PlanStep, GivesPromptsNoMoreThanTheirOwnLimit) {
  EXPECT_THAT(Plan({{500, 1}, {6, 6}, {30, 1}}, 512, 1000, 40), ElementsAre(40, 6, 0));
  EXPECT_THAT(Plan({{30, 1}, {6, 6}, {500, 1}}, 512, 1000, 40), ElementsAre(30, 6, 10));
  EXPECT_THAT(Plan({{500, 1}, {1, 1}}, 512, 1000, 8), ElementsAre(8, 1));
}

class PromptPaceTest : public ::testing::Test {
 protected:
  // A machine on which a step takes 2 ms and this time for each row.
  void Teach(double row_ms) {
    for (int i = 0; i < 200; ++i) {
      for (const int rows : {1, 4, 8, 16, 32, 64, 128, 256})
        step_time_.Observe(static_cast<uint32_t>(rows), 1e-3 * (2 + row_ms * rows));
    }
  }
  int MostRows(int decoding) { return pace_.MostRows(decoding, 512, step_time_, now_); }

  absl::Time now_ = absl::UnixEpoch();
  StepTime step_time_;
  PromptPace pace_;
};

TEST_F(PromptPaceTest, APromptAloneHasAllRows) {
  Teach(0.4);
  EXPECT_EQ(MostRows(0), 512);
}

TEST_F(PromptPaceTest, BesideDecodingItHasThoseThatKeepAStepShort) {
  Teach(0.4);
  const int rows = MostRows(4);
  EXPECT_GE(rows, PromptPace::kLeastRows);
  EXPECT_LE(2 + 0.4 * (rows + 4), PromptPace::kSlower * (2 + 0.4 * 4) * 1.05);
  EXPECT_GT(MostRows(64), 2 * rows) << "a step takes long anyway";
}

TEST_F(PromptPaceTest, WhereRowsCostLittleItHasMany) {
  Teach(0.005);
  EXPECT_GT(MostRows(1), 256);
}

TEST_F(PromptPaceTest, ASequenceBetweenTwoRoundsStillDecodes) {
  Teach(0.4);
  const int rows = MostRows(4);
  now_ += PromptPace::kBetweenRounds / 2;
  EXPECT_EQ(MostRows(0), rows);
  now_ += PromptPace::kBetweenRounds;
  EXPECT_EQ(MostRows(0), 512);
}

TEST_F(PromptPaceTest, SomeRowsGoOnWhateverTheyCost) {
  Teach(100);
  EXPECT_EQ(MostRows(1), PromptPace::kLeastRows);
}

TEST(PlanStep, KeepsAShareForPromptsHoweverMuchIsDecoded) {
  std::vector<PendingRows> pending(64, {1, 1});
  pending.push_back({500, 1});
  const std::vector<int> plan = Plan(pending, 64);
  EXPECT_EQ(plan.back(), 8);
  EXPECT_EQ(std::accumulate(plan.begin(), plan.end(), 0), 64);
}

TEST(PlanStep, KeepsNoMoreForPromptsThanTheyCanUse) {
  std::vector<PendingRows> pending(400, {1, 1});
  pending.push_back({20, 1});
  const std::vector<int> plan = Plan(pending, 400);
  EXPECT_EQ(plan.back(), 20);
  EXPECT_EQ(std::accumulate(plan.begin(), plan.end(), 0), 400);
}

TEST(PlanStep, GivesTheFirstVerificationTheWholeBudgetIfItNeedsIt) {
  EXPECT_THAT(Plan({{500, 1}, {32, 32}, {1, 1}}, 32), ElementsAre(0, 32, 0));
}

TEST(PlanStep, LetsSequencesWaitWhoseLogitsDoNotFit) {
  EXPECT_THAT(Plan({{6, 6}, {6, 6}, {4, 4}}, 64, 10), ElementsAre(6, 0, 4));
  EXPECT_THAT(Plan({{6, 6}, {12, 6}}, 64, 10), ElementsAre(6, 6)) << "the rows before them may go";
}

TEST(PlanStep, CutsAPromptThatNeedsAllLogitsToThoseThatFit) {
  EXPECT_THAT(Plan({{500, 1, true}}, 512, 100), ElementsAre(100));
  EXPECT_THAT(Plan({{6, 6}, {500, 1, true}}, 512, 100), ElementsAre(6, 94));
  EXPECT_THAT(Plan({{101, 2, true}}, 512, 100), ElementsAre(99)) << "the last two stay together";
}

TEST(PlanStep, KeepsLogitsForAPromptThatNeedsAllOfThem) {
  std::vector<PendingRows> pending(64, {1, 1});
  pending.push_back({500, 1, true});
  EXPECT_EQ(Plan(pending, 500, 64).back(), 8);
}

TEST(PlanStep, BranchesWaitForAllOthers) {
  const PendingRows branch = {.rows = 2, .logit_rows = 1, .branch = true};
  const PendingRows long_branch = {.rows = 500, .logit_rows = 1, .branch = true};
  EXPECT_THAT(Plan({branch, {1, 1}, long_branch, {500, 1}}, 64), ElementsAre(0, 1, 0, 63));
  EXPECT_THAT(Plan({branch, {1, 1}}, 64), ElementsAre(0, 1)) << "also where there is room";
  EXPECT_THAT(Plan({long_branch, branch}, 64), ElementsAre(62, 2));
}

// For any load: the budget holds and is used, the rows that need logits are never split, and repeated steps
// finish every sequence.
TEST(PlanStep, FinishesRandomLoadsWithinTheBudget) {
  std::mt19937 random(1);
  for (int load = 0; load < 200; ++load) {
    const int budget = 32 + static_cast<int>(random() % 64);
    const bool limits_logits = load % 2 == 1;
    const int logit_budget = limits_logits ? 32 + static_cast<int>(random() % 32) : 1000;
    std::vector<PendingRows> pending;
    for (int i = 0; i < 20; ++i) {
      const int rows = 1 + static_cast<int>(random() % 300);
      pending.push_back(
          {rows, static_cast<int>(random() % std::min(rows + 1, 32)), limits_logits && i % 3 == 0});
    }
    for (int step = 0; !pending.empty(); ++step) {
      ASSERT_LT(step, 6000) << "no end";
      const std::vector<int> plan = Plan(pending, budget, logit_budget);
      int logits = 0;
      for (size_t i = 0; i < plan.size(); ++i) {
        const PendingRows& sequence = pending[i];
        logits += sequence.all_logits ? plan[i] : plan[i] == sequence.rows ? sequence.logit_rows : 0;
      }
      ASSERT_LE(logits, logit_budget);
      ASSERT_LE(std::accumulate(plan.begin(), plan.end(), 0), budget);
      ASSERT_GT(std::accumulate(plan.begin(), plan.end(), 0), 0) << "no progress";
      int prefills = 0, prefill_rows = 0;
      for (size_t i = 0; i < plan.size(); ++i) {
        if (pending[i].rows - pending[i].logit_rows <= 16) continue;
        ++prefills;
        prefill_rows += plan[i];
      }
      // The first sequence that decodes has at most 16 + 31 rows.
      if (prefills > 0 && budget >= 54) {
        ASSERT_GT(prefill_rows, 0) << "prompts starve";
      }
      std::vector<PendingRows> left;
      const int unused = budget - std::accumulate(plan.begin(), plan.end(), 0);
      for (size_t i = 0; i < plan.size(); ++i) {
        const int rest = pending[i].rows - plan[i];
        if (rest == 0) continue;
        ASSERT_GE(rest, pending[i].logit_rows) << "logit_rows rows were split";
        // No rows are kept for prompts if there are none.
        if (prefills == 0 && !limits_logits) {
          ASSERT_LT(unused, rest) << "there was room for the rest";
        }
        left.push_back({rest, pending[i].logit_rows, pending[i].all_logits});
      }
      pending = left;
    }
  }
}

}  // namespace
}  // namespace outrider
