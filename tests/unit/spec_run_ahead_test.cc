// Proves by exact enumeration that drafting ahead leaves the target's distribution as it is, and so does a
// continuation: the token that the draft drew to follow a proposal, which the verdict takes into account if
// it comes in time. Each mistake in the last part must fail the same check.

#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/spec/verify.h"
#include "tests/unit/spec_enumeration.h"
#include "tests/unit/spec_law.h"
#include "tests/unit/spec_testing.h"

namespace outrider {
namespace {

// A coordinator that drafts for outcomes of a round while the target judges it, and what it may do wrong.
struct Scheme {
  Rule rule = Rule::kToken;
  int k = 1;
  bool greedy_target = false;
  // Whether the continuation, which has been drawn, comes in time for the verdict.
  std::function<bool(const Proposal&, const ProposalNode& next)> in_time = [](auto&, auto&) { return true; };
  // Draws for all outcomes that are drafted for, and not only for the one that comes true. That makes no
  // difference to a generator that is asked by counter, but for many more paths.
  bool draws_unused = false;

  // The round start of a proposal that is drafted while the round that began at `in_flight` is judged.
  std::function<uint64_t(uint64_t in_flight, uint64_t tokens)> start_ahead = [](uint64_t, uint64_t tokens) {
    return tokens;
  };
  // What is sent as the continuation.
  std::function<ProposalNode(ProposalNode drawn)> sent = [](ProposalNode drawn) { return drawn; };
  // Drafts twice where it drafts ahead, and takes the likelier proposal.
  bool takes_the_likelier = false;
};

ProposalNode DraftNode(const Scheme& scheme, const Pair& pair, const Tokens& before, Enumerator& noise) {
  return Propose(scheme.rule, pair.draft.Row(before), 0, before.size(), noise);
}

// The proposal that follows `tokens`.
Proposal Draft(const Scheme& scheme, const Pair& pair, Tokens tokens, uint64_t round_start,
               Enumerator& noise) {
  noise.StartRound(round_start);
  Proposal proposal;
  for (int i = 0; i < scheme.k; ++i) {
    ProposalNode node = DraftNode(scheme, pair, tokens, noise);
    tokens.push_back(node.token);
    AppendToChain(node.token, std::move(node.q), proposal);
  }
  return proposal;
}

double ProbabilityOf(const Proposal& proposal) {
  double probability = 1;
  for (const ProposalNode& node : proposal) probability *= node.q(node.token);
  return probability;
}

Proposal DraftAhead(const Scheme& scheme, const Pair& pair, const Tokens& tokens, uint64_t in_flight,
                    Enumerator& noise) {
  const uint64_t start = scheme.start_ahead(in_flight, tokens.size());
  Proposal proposal = Draft(scheme, pair, tokens, start, noise);
  if (!scheme.takes_the_likelier) return proposal;
  constexpr uint64_t kNoRound = 1000;  // numbers that nothing else uses
  Proposal other = Draft(scheme, pair, tokens, kNoRound + start, noise);
  return ProbabilityOf(other) > ProbabilityOf(proposal) ? other : proposal;
}

Tokens Drafted(const Proposal& proposal, size_t length) {
  Tokens tokens;
  for (size_t i = 0; i < length; ++i) tokens.push_back(proposal[i].token);
  return tokens;
}

// What the text may be after a round, as far as it is drafted for: after each number of accepted tokens the
// draft's first choice that was not drafted, and after all of them what the draft drew to follow them.
std::set<Tokens> Assumed(const Pair& pair, const Tokens& committed, const Proposal& proposal, TokenId next) {
  std::set<Tokens> assumed = {Join(Join(committed, Drafted(proposal, proposal.size())), {next})};
  for (size_t a = 0; a < proposal.size(); ++a) {
    const Tokens before = Join(committed, Drafted(proposal, a));
    const WeightRow row = pair.draft.Row(before);
    std::vector<float> others(row.weights.begin(), row.weights.end());
    others[proposal[a].token] = -1;
    assumed.insert(Join(before, {FindMax(others).index}));
  }
  return assumed;
}

Verdict Judge(const Scheme& scheme, const Pair& pair, const Tokens& committed, const Proposal& proposal,
              const ProposalNode* continuation, Enumerator& noise) {
  noise.StartRound(committed.size());
  const auto rows = [&](int i) -> absl::StatusOr<WeightRow> {
    const WeightRow row = pair.target.Row(Join(committed, Drafted(proposal, i)));
    if (!scheme.greedy_target) return row;
    return WeightRow{.point_mass = FindMax(row.weights).index, .logits = row.weights};
  };
  return *Verify({.rule = scheme.rule}, proposal, rows, committed.size(), noise, continuation);
}

// Rounds until there are `length` tokens.
Tokens Text(const Scheme& scheme, const Pair& pair, int length, Enumerator& noise) {
  Tokens committed;
  Proposal proposal = Draft(scheme, pair, committed, 0, noise);
  while (static_cast<int>(committed.size()) < length) {
    const uint64_t n = committed.size();
    const Tokens all = Join(committed, Drafted(proposal, proposal.size()));
    noise.StartRound(all.size());
    const ProposalNode next = DraftNode(scheme, pair, all, noise);
    const std::set<Tokens> assumed = Assumed(pair, committed, proposal, next.token);
    std::map<Tokens, Proposal> ahead;
    if (scheme.draws_unused) {
      for (const Tokens& text : assumed) ahead[text] = DraftAhead(scheme, pair, text, n, noise);
    }

    const ProposalNode sent = scheme.sent(next);
    const bool in_time = scheme.in_time(proposal, next);
    const Verdict verdict = Judge(scheme, pair, committed, proposal, in_time ? &sent : nullptr, noise);
    committed = Join(Join(committed, Drafted(proposal, verdict.path.size())), {verdict.token});

    if (!assumed.contains(committed)) {
      proposal = Draft(scheme, pair, committed, committed.size(), noise);
    } else if (scheme.draws_unused) {
      proposal = ahead.at(committed);
    } else {
      proposal = DraftAhead(scheme, pair, committed, n, noise);
    }
  }
  return committed;
}

double WorstDeviation(const Scheme& scheme, int length, const std::vector<Pair>& pairs = Pairs(2)) {
  double worst = 0;
  for (const Pair& pair : pairs) {
    const auto text = [&](Enumerator& noise) { return Text(scheme, pair, length, noise); };
    worst = std::max(worst, JointDeviation(text, pair.target, length));
  }
  return worst;
}

const Rule kRatioRules[] = {Rule::kToken, Rule::kBlock};

TEST(ExactnessOfRunAhead, WithoutContinuations) {
  for (Rule rule : kRatioRules) {
    for (int k : {0, 1, 2}) {
      const Scheme scheme = {.rule = rule, .k = k, .in_time = [](auto&, auto&) { return false; }};
      EXPECT_LT(WorstDeviation(scheme, k == 2 ? 2 : 4), kExact) << "k = " << k;
    }
  }
}

TEST(ExactnessOfRunAhead, WithContinuations) {
  for (Rule rule : kRatioRules) {
    for (int k : {0, 1, 2})
      EXPECT_LT(WorstDeviation({.rule = rule, .k = k}, 3, Pairs(1)), kExact) << "k = " << k;
  }
}

TEST(ExactnessOfRunAhead, WithContinuationsThatComeInTimeOrNotByWhatWasDrawnBefore) {
  for (Rule rule : kRatioRules) {
    Scheme scheme = {.rule = rule, .k = 1};
    scheme.in_time = [](const Proposal& proposal, auto&) { return proposal[0].token == 1; };
    EXPECT_LT(WorstDeviation(scheme, 4), kExact);
  }
}

TEST(ExactnessOfRunAhead, WithNumbersDrawnForOutcomesThatDidNotComeTrue) {
  for (Rule rule : kRatioRules) {
    for (bool in_time : {false, true}) {
      const Scheme scheme = {
          .rule = rule, .k = 1, .in_time = [in_time](auto&, auto&) { return in_time; }, .draws_unused = true};
      EXPECT_LT(WorstDeviation(scheme, 3), kExact);
    }
  }
}

TEST(ExactnessOfRunAhead, CoupledRule) {
  for (int k : {0, 1, 2}) {
    EXPECT_LT(WorstDeviation({.rule = Rule::kCoupled, .k = k}, 3), kExact) << "k = " << k;
  }
  EXPECT_LT(WorstDeviation({.rule = Rule::kCoupled, .k = 1, .draws_unused = true}, 3), kExact);
}

TEST(ExactnessOfRunAhead, AGreedyTargetEmitsItsArgmax) {
  for (Rule rule : {Rule::kToken, Rule::kBlock, Rule::kCoupled}) {
    const Scheme scheme = {.rule = rule, .k = 2, .greedy_target = true};
    for (const Pair& pair : Pairs(1)) {
      Tokens greedy;
      while (greedy.size() < 5) greedy.push_back(FindMax(pair.target.Row(greedy).weights).index);
      Enumerator noise;
      noise.ForEachPath([&] {
        const Tokens tokens = Text(scheme, pair, 3, noise);
        EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), greedy.begin()));
      });
    }
  }
}

// ---- a continuation in one verdict

// The verdict after an accepted token 0, or after nothing, whose continuation is token `next` of q.
absl::StatusOr<Verdict> JudgeContinuation(Rule rule, const Proposal& proposal, TokenId next, Distribution q,
                                          WeightRow target, std::initializer_list<double> uniforms) {
  ScriptedNoise noise(uniforms);
  const ProposalNode continuation = {.token = next, .q = std::move(q)};
  return Verify(
      {.rule = rule}, proposal, [&](int) -> absl::StatusOr<WeightRow> { return target; }, 7, noise,
      &continuation);
}

const TestRow kTarget = {2, 1, 1};
const Proposal kAcceptedToken = Chain({{0, Dense({1, 1, 2})}});  // p / q is 2

TEST(Continuation, IsAcceptedAsADraftedTokenIs) {
  for (Rule rule : kRatioRules) {
    const auto accepted = JudgeContinuation(rule, kAcceptedToken, 1, Dense({0, 1, 1}), kTarget, {.9, .49});
    EXPECT_EQ(accepted->token, 1);
    const auto rejected =
        JudgeContinuation(rule, kAcceptedToken, 1, Dense({0, 1, 1}), kTarget, {.9, .51, .99});
    EXPECT_EQ(rejected->token, 0) << "which is all of the residual";
  }
}

TEST(Continuation, UsesTheNumbersOfItsPosition) {
  for (Rule rule : kRatioRules) {
    ScriptedNoise noise({0, .51, 0});
    const ProposalNode continuation = {.token = 1, .q = Dense({0, 1, 1})};
    ASSERT_TRUE(Verify(
                    {.rule = rule}, kAcceptedToken,
                    [&](int) -> absl::StatusOr<WeightRow> { return kTarget.row(); }, 7, noise, &continuation)
                    .ok());
    EXPECT_EQ(noise.asked, (std::vector<ScriptedNoise::Question>{
                               {Purpose::kAccept, 7}, {Purpose::kAccept, 8}, {Purpose::kResidual, 8}}));
  }
}

TEST(Continuation, DoesNotChangeTheKindOfAVerdict) {
  for (Rule rule : kRatioRules) {
    for (double u : {0.0, .9}) {
      const auto bonus = JudgeContinuation(rule, kAcceptedToken, 1, Dense({0, 1, 1}), kTarget, {0, u, 0});
      EXPECT_EQ(bonus->kind, Verdict::Kind::kBonus);
      EXPECT_EQ(bonus->path, std::vector<int>{0});
      const auto plain = JudgeContinuation(rule, {}, 1, Dense({0, 1, 1}), kTarget, {u, 0});
      EXPECT_EQ(plain->kind, Verdict::Kind::kPlain);
      EXPECT_TRUE(plain->path.empty());
    }
  }
}

TEST(Continuation, IsNoDraftedTokenForTheCanaries) {
  const auto with = JudgeContinuation(Rule::kToken, kAcceptedToken, 1, Dense({0, 1, 1}), kTarget, {0, 0});
  const auto none = JudgeContinuation(Rule::kToken, {}, 1, Dense({0, 1, 1}), kTarget, {0});
  EXPECT_EQ(with->judged, 1);
  EXPECT_DOUBLE_EQ(with->expected_accepted, .75);
  EXPECT_DOUBLE_EQ(with->expected_variance, .75 * .25);
  EXPECT_EQ(none->judged, 0);
  EXPECT_EQ(none->expected_accepted, 0);
  EXPECT_EQ(none->expected_variance, 0);
}

TEST(Continuation, IsIgnoredWhereTheProposalDoesNotStand) {
  const Proposal impossible = Chain({{2, Dense({0, 0, 1})}});
  const TestRow target = {1, 1, 0};
  for (Rule rule : kRatioRules) {
    const auto verdict = JudgeContinuation(rule, impossible, 1, PointMass(1), target, {0, 0});
    EXPECT_EQ(verdict->kind, Verdict::Kind::kCorrected);
    EXPECT_EQ(verdict->token, 0);
  }
}

TEST(Continuation, MeetsATargetAtTemperatureZeroWithoutNoise) {
  const std::vector<float> logits = {0, 3, 1};
  for (Rule rule : kRatioRules) {
    for (TokenId next : {1, 2}) {
      EXPECT_EQ(JudgeContinuation(rule, {}, next, Dense({0, 1, 1}), Greedy(logits), {})->token, 1);
    }
  }
}

TEST(Continuation, WithoutItsDistributionIsRefusedByTheRulesThatCompare) {
  for (Rule rule : kRatioRules) {
    EXPECT_EQ(JudgeContinuation(rule, {}, 1, {}, kTarget, {}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(JudgeContinuation(Rule::kCoupled, {}, 1, {}, kTarget, {}).ok());
}

// What it is for: the outcome that is drafted for comes true as often as p and q overlap.
TEST(Continuation, IsTheTokenThatFollowsAsOftenAsTheDistributionsOverlap) {
  for (const Pair& pair : Pairs(6)) {
    const Scheme scheme = {.k = 0};
    double agreed = 0;
    Enumerator noise;
    noise.ForEachPath([&] {
      noise.StartRound(0);
      const ProposalNode next = DraftNode(scheme, pair, {}, noise);
      if (Judge(scheme, pair, {}, {}, &next, noise).token == next.token) agreed += noise.probability();
    });
    EXPECT_NEAR(agreed, Overlap(pair.target.Row({}), TruncateTopN(pair.draft.Row({}), 0)), kExact);
  }
}

// ---- negative controls: mistakes that the checks above must notice

// Under the block rule a verdict depends on tokens beyond those that stand. By the token rule it does not, so
// that this goes unpunished there.
TEST(NegativeControlOfRunAhead, TheNoiseOfTheRoundInFlightIsNoticedUnderTheBlockRule) {
  Scheme scheme = {.rule = Rule::kBlock, .k = 2};
  scheme.start_ahead = [](uint64_t in_flight, uint64_t) { return in_flight; };
  EXPECT_GT(WorstDeviation(scheme, 2, AllPairs(2)), kNoticed);
}

TEST(NegativeControlOfRunAhead, AContinuationThatIsWithheldForItsTokenIsNoticed) {
  for (Rule rule : kRatioRules) {
    Scheme scheme = {.rule = rule, .k = 1};
    scheme.in_time = [](auto&, const ProposalNode& next) { return next.token == 1; };
    EXPECT_GT(WorstDeviation(scheme, 3), kNoticed);
  }
}

TEST(NegativeControlOfRunAhead, AnArgmaxWithTheDistributionOfADrawIsNoticed) {
  for (Rule rule : kRatioRules) {
    Scheme scheme = {.rule = rule, .k = 1};
    scheme.sent = [](ProposalNode drawn) {
      drawn.token = FindMax(drawn.q.weights).index;
      return drawn;
    };
    EXPECT_GT(WorstDeviation(scheme, 3), kNoticed);
  }
}

TEST(NegativeControlOfRunAhead, TheLikelierOfTwoProposalsIsNoticed) {
  for (Rule rule : kRatioRules) {
    Scheme scheme = {.rule = rule, .k = 1};
    scheme.takes_the_likelier = true;
    EXPECT_GT(WorstDeviation(scheme, 3), kNoticed);
  }
}

}  // namespace
}  // namespace outrider
