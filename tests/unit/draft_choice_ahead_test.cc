// Which outcomes are worth drafting for while the target verifies, and whether drafting ahead pays at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "coordinator/policy/draft_choice.h"

namespace outrider {
namespace {

using testing::IsEmpty;

// Tokens 10, 11, ..., each with two other choices.
Proposal Chain(int k) {
  Proposal chain;
  for (int i = 0; i < k; ++i) {
    AppendToChain(10 + i, {}, chain);
    chain.back().alternatives = {20 + i, 30 + i};
  }
  return chain;
}

class OutcomesTest : public ::testing::Test {
 protected:
  static Request MakeRequest() {
    Request request;
    request.prompt = {1};
    request.max_tokens = 100;
    request.draft_tokens = 4;
    request.schedule = v1::SCHEDULE_RUN_AHEAD;
    request.end_ids = {2};
    return request;
  }
  Generation Make(Request request) {
    Generation generation(std::move(request), tokenizer_.get(), Clock::now());
    Verdict verdict;
    verdict.token = 3;
    generation.Commit({}, verdict);
    return generation;
  }

  std::unique_ptr<Tokenizer> tokenizer_ = *Tokenizer::Load("tests/data/text/gpt2-small.tokenizer.json");
};

TEST_F(OutcomesTest, AreAtMostAsManyAsAllowedAndTheWholeProposalIsAmongThem) {
  const Generation generation = Make(MakeRequest());
  for (const int most : {1, 3, 8}) {
    DraftChoice policy(most);
    const std::vector<Outcome> outcomes = policy.Outcomes(generation, Chain(4));
    EXPECT_LE(outcomes.size(), static_cast<size_t>(most));
    EXPECT_GE(outcomes.size(), 1u);
    EXPECT_EQ(outcomes[0].accepted, 4u);
    EXPECT_FALSE(outcomes[0].token);
    for (const Outcome& outcome : outcomes) EXPECT_TRUE(outcome.length.ahead);
  }
}

TEST_F(OutcomesTest, NamesTheDraftsOtherChoicesAndNeverTheRejectedToken) {
  const Generation generation = Make(MakeRequest());
  const Proposal chain = Chain(4);
  const std::vector<Outcome> outcomes = DraftChoice(64).Outcomes(generation, chain);
  ASSERT_GT(outcomes.size(), 3u);
  for (const Outcome& outcome : outcomes) {
    if (!outcome.token) continue;
    EXPECT_THAT(chain[outcome.accepted].alternatives, testing::Contains(*outcome.token));
  }
}

TEST_F(OutcomesTest, NothingFollowsATokenThatEndsTheText) {
  const Generation generation = Make(MakeRequest());
  Proposal chain = Chain(4);
  chain[1].token = 2;
  chain[0].alternatives = {2, 7};
  for (const Outcome& outcome : DraftChoice(64).Outcomes(generation, chain)) {
    EXPECT_LE(outcome.accepted, 1u);
    EXPECT_NE(outcome.token, std::optional<TokenId>(2));
  }
}

TEST_F(OutcomesTest, AreDraftedForAsFarAsARequestAfterThemWouldBe) {
  Request request = MakeRequest();
  request.max_tokens = 7;
  const Generation generation = Make(std::move(request));
  const std::vector<Outcome> outcomes = DraftChoice(64).Outcomes(generation, Chain(4));
  // Six tokens are left. After a + 1 of them, a round with K + 1 tokens may complete the answer.
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.length.most, std::min(4, 6 - (static_cast<int>(outcome.accepted) + 1) - 1));
    EXPECT_LT(outcome.accepted, 4u) << "then one token is left, which needs no draft";
  }
  EXPECT_THAT(outcomes, testing::Not(IsEmpty()));
}

TEST_F(OutcomesTest, OnlyTheScheduleThatIsAskedForRunsAhead) {
  for (const v1::Schedule schedule : {v1::SCHEDULE_LOCKSTEP, v1::SCHEDULE_RUN_AHEAD}) {
    Request request = MakeRequest();
    request.schedule = schedule;
    DraftChoice policy;
    policy.Begin();
    EXPECT_EQ(policy.Choose(Make(std::move(request))).ahead, schedule == v1::SCHEDULE_RUN_AHEAD);
  }
}

void Report(DraftChoice& policy, const Generation& generation, const Proposal& chain, const Verdict& verdict,
            const RoundTimes& times, const AheadReport& ahead) {
  policy.OnRound({.generation = &generation,
                  .proposal = &chain,
                  .verdict = &verdict,
                  .drafter = v1::DRAFTER_KIND_MODEL,
                  .draft_status = DraftStatus::kUsable,
                  .chosen = static_cast<int>(chain.size()),
                  .emitted = static_cast<int>(verdict.path.size()) + 1,
                  .running = 1,
                  .proposal_bytes = 0,
                  .ahead = ahead,
                  .times = times});
}

// Reports rounds that were drafted ahead, with or without hits, by a draft that takes 1 ms a step.
void Learn(DraftChoice& policy, const Generation& generation, bool hit) {
  policy.Begin();
  for (int i = 0; i < 100; ++i) {
    const Proposal chain = Chain(2);
    Verdict verdict;
    verdict.path = ChainPath(i % 2 == 0 ? 2 : 0);
    verdict.token = hit ? 20 : 999;
    RoundTimes times;
    times.draft_server.set_compute_us(2000);
    times.draft_server.set_batch_sequences(1);
    times.draft = std::chrono::milliseconds(2);
    Report(policy, generation, chain, verdict, times, {.runs = true, .branches = 2, .hit = hit});
  }
}

TEST_F(OutcomesTest, AreDraftedForNowAndThenOnlyWhereNoneOfThemCame) {
  const Generation generation = Make(MakeRequest());
  for (const bool hit : {false, true}) {
    DraftChoice policy;
    Learn(policy, generation, hit);
    int drafted_for = 0;
    for (int round = 0; round < 160; ++round) {
      if (!policy.Outcomes(generation, Chain(2)).empty()) ++drafted_for;
    }
    EXPECT_EQ(drafted_for, hit ? 160 : 10);
  }
}

// Reports rounds that take `ratio` times as long if they run ahead. Returns the share that ran ahead.
double ShareAhead(MeasuredChoice& choice, double ratio, int rounds = 4000) {
  std::mt19937 random(7);
  std::normal_distribution<double> noise(1, 0.1);
  int ahead = 0;
  for (int i = 0; i < rounds; ++i) {
    const bool runs = choice.Next();
    choice.Observe(runs, (runs ? ratio : 1.0) * std::max(noise(random), 0.5), 3);
    if (runs) ++ahead;
  }
  return static_cast<double>(ahead) / rounds;
}

TEST(MeasuredChoice, UsesWhatIsFasterAndTriesTheOtherNowAndThen) {
  MeasuredChoice faster, slower;
  EXPECT_GT(ShareAhead(faster, 0.7), 0.9);
  const double tried = ShareAhead(slower, 1.3);
  EXPECT_LT(tried, 0.05);
  EXPECT_GT(tried, 0);
}

TEST(MeasuredChoice, FollowsAMachineThatChanges) {
  MeasuredChoice choice;
  ShareAhead(choice, 1.3);
  EXPECT_GT(ShareAhead(choice, 0.7), 0.6);
  EXPECT_LT(ShareAhead(choice, 1.3), 0.4);
}

// Whether a MeasuredChoice for few rounds keeps to the faster way, although a round yields 1 to 9 tokens.
class ScheduleTrialTest : public OutcomesTest {
 protected:
  // Reports a round that took 1 ms, or `seconds_ahead` if it ran ahead.
  void Play(DraftChoice& policy, const Generation& generation, bool ahead, double seconds_ahead) {
    const Proposal chain = Chain(8);
    Verdict verdict;
    size_t accepted = 0;
    while (accepted < chain.size() && uniform_(random_) < 0.8) ++accepted;
    verdict.path = ChainPath(accepted);
    verdict.token = 999;
    RoundTimes times;
    times.round = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(ahead ? seconds_ahead : 1e-3));
    Report(policy, generation, chain, verdict, times, {.runs = ahead});
  }

  std::mt19937 random_{3};
  std::uniform_real_distribution<double> uniform_;
};

TEST_F(ScheduleTrialTest, LuckyRoundsDoNotMakeASlowScheduleTheUsualOne) {
  Request request = MakeRequest();
  request.schedule = v1::SCHEDULE_AUTO;
  request.draft_tokens = 8;
  const Generation generation = Make(std::move(request));
  for (const double seconds_ahead : {0.75e-3, 1.3e-3}) {
    DraftChoice policy;
    policy.Begin();
    int slower = 0;
    for (int round = 0; round < 4000; ++round) {
      const bool ahead = policy.Choose(generation).ahead;
      Play(policy, generation, ahead, seconds_ahead);
      if (round >= 1000) slower += ahead == (seconds_ahead > 1e-3);
    }
    EXPECT_LT(slower, 60) << seconds_ahead;
    EXPECT_GT(slower, 0) << seconds_ahead;
  }
}

}  // namespace
}  // namespace outrider
