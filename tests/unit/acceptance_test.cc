// How often drafted tokens are accepted, and which outcomes of a verification are likely.
#include "coordinator/policy/measured_rounds.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>

namespace outrider {
namespace {

using testing::SizeIs;

// Tokens 10, 11, ..., each with two other choices.
Proposal Chain(int k, float confidence = 0) {
  Proposal chain;
  for (int i = 0; i < k; ++i) {
    AppendToChain(10 + i, {}, chain);
    chain.back().alternatives = {20 + i, 30 + i};
    chain.back().confidence = confidence;
  }
  return chain;
}

TEST(AcceptanceByConfidence, DoesNotDependOnWhereDraftsEnd) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform;
  AcceptanceByConfidence whole(1), short_of(1);
  const DraftStop stop{.acceptance = {.5f, 1}, .least = .7f};
  for (int round = 0; round < 20000; ++round) {
    const bool sure = round % 2 == 0;
    Proposal drafted;
    size_t accepted = 0;
    for (int i = 0; i < 4; ++i) {
      if (uniform(random) < (sure ? .9 : .1) && accepted == drafted.size()) ++accepted;
      AppendToChain(0, {}, drafted);
      drafted.back().confidence = sure ? .95f : .55f;
    }
    whole.Observe(drafted, accepted);
    while (drafted.size() > 1 && EndsDraft(stop, std::span(drafted).first(drafted.size() - 1)))
      drafted.pop_back();
    short_of.Observe(drafted, std::min(accepted, drafted.size()));
  }
  for (const AcceptanceByConfidence* record : {&whole, &short_of}) {
    EXPECT_NEAR(record->accepted(0) / record->judged(0), .1, .01);
    EXPECT_NEAR(record->accepted(7) / record->judged(7), .9, .01);
    EXPECT_EQ(record->judged(AcceptanceByConfidence::kUnknown), 0);
  }
  EXPECT_LT(short_of.judged(0), .95 * whole.judged(0));
}

TEST(LikelyOutcomes, HaveTheChancesThatFollowFromThoseOfEachToken) {
  const double accepted[] = {0.9, 0.5}, corrected[] = {0.6, 0.1};
  const std::vector<NamedOutcome> outcomes =
      LikelyOutcomes(Chain(2), {.accepted = accepted, .corrected = corrected, .continued = 0.8});
  ASSERT_THAT(outcomes, SizeIs(5));
  const auto is = [](const NamedOutcome& outcome, size_t a, int rank, double chance) {
    EXPECT_EQ(outcome.accepted, a);
    EXPECT_EQ(outcome.rank, rank);
    EXPECT_NEAR(outcome.chance, chance, 1e-12);
  };
  is(outcomes[0], 2, 0, 0.9 * 0.5 * 0.8);
  is(outcomes[1], 1, 0, 0.9 * 0.5 * 0.6);
  is(outcomes[2], 0, 0, 0.1 * 0.6);
  is(outcomes[3], 1, 1, 0.9 * 0.5 * 0.1);
  is(outcomes[4], 0, 1, 0.1 * 0.1);
}

TEST(Acceptance, IsTheShareOfJudgedTokensThatStood) {
  Acceptance acceptance;
  EXPECT_GT(acceptance.alpha(), 0.5) << "before anything is known, drafts are worth a try";
  // Three of the four judged tokens are accepted. Tokens after a rejected one are not judged.
  for (int i = 0; i < 400; ++i) acceptance.Observe(Chain(8), 3);
  EXPECT_NEAR(acceptance.alpha(), 3.0 / 4, 1e-9);
  EXPECT_FALSE(acceptance.knows_confidence());
}

TEST(Acceptance, OfDraftsThatEndWhereTheyAreUnsureIsThatOfTheirFirstTokens) {
  Acceptance acceptance;
  for (int i = 0; i < 2000; ++i) {
    const bool sure = i % 2 == 0;
    acceptance.Observe(Chain(sure ? 6 : 1, sure ? 0.95f : 0.55f), sure ? 6 : 0);
  }
  EXPECT_TRUE(acceptance.knows_confidence());
  EXPECT_NEAR(acceptance.alpha(), 0.5, 0.01);
  EXPECT_GT(acceptance.AlphaOfBin(AcceptanceByConfidence::BinOf(0.95f)), 0.95);
  EXPECT_LT(acceptance.AlphaOfBin(AcceptanceByConfidence::BinOf(0.55f)), 0.1);
}

TEST(Acceptance, AGenerationThatIsRejectedMoreOftenThanOthersHasAnExcess) {
  Acceptance acceptance;
  AcceptanceByConfidence usual(1), hard(1);
  for (int i = 0; i < 500; ++i) {
    acceptance.Observe(Chain(1, 0.95f), i % 10 == 0 ? 0 : 1);
    usual.Observe(Chain(1, 0.95f), i % 10 == 0 ? 0 : 1);
    hard.Observe(Chain(1, 0.95f), i % 2);
  }
  EXPECT_NEAR(acceptance.ExcessOfRejections(usual), 1, 0.1);
  EXPECT_NEAR(acceptance.ExcessOfRejections(hard), 5, 1);
  EXPECT_EQ(acceptance.ExcessOfRejections(AcceptanceByConfidence(1)), 1) << "nothing is known of it";
}

TEST(Acceptance, LearnsHowOftenOutcomesWereForeseen) {
  Acceptance acceptance;
  Verdict whole, corrected;
  whole.path = {0, 1};
  corrected.token = 30;
  for (int i = 0; i < 1000; ++i) {
    acceptance.ObserveAhead(Chain(2), whole, /*branches=*/8, /*hit=*/i % 4 != 0);
    acceptance.ObserveAhead(Chain(2), corrected, /*branches=*/8, /*hit=*/i % 4 == 0);
  }
  const double alpha = acceptance.alpha();
  EXPECT_NEAR(acceptance.WholeHit(0.1), 0.75, 0.02);
  EXPECT_NEAR(acceptance.CorrectedHit(alpha, 2, 8), 0.25, 0.02);
  const std::vector<NamedOutcome> outcomes = acceptance.Outcomes(Chain(1));
  ASSERT_THAT(outcomes, SizeIs(3));
  EXPECT_EQ(outcomes[1].rank, 1) << "the second choice was always the correction";
}

TEST(Acceptance, FewerCorrectionsOfALongerProposalAreForeseen) {
  Acceptance acceptance;
  for (int i = 0; i < 3000; ++i) {
    Verdict corrected;
    corrected.token = i % 2 == 0 ? 20 : 30;
    acceptance.ObserveAhead(Chain(1), corrected, /*branches=*/2, /*hit=*/i % 4 == 0);
  }
  // One branch is for one of two corrections of each token. It is right half as often as it should be.
  const double alpha = 0.6;
  EXPECT_NEAR(acceptance.CorrectedHit(alpha, 1, 2), 0.25, 0.02);
  EXPECT_NEAR(acceptance.CorrectedHit(alpha, 4, 2), 0.25 * (1 - alpha) / (1 - std::pow(alpha, 4)), 0.02);
  EXPECT_NEAR(acceptance.CorrectedHit(alpha, 4, 9), 0.5, 0.02) << "all eight corrections";
}

}  // namespace
}  // namespace outrider
