// Proves by exact enumeration that drafting ahead leaves the target's distribution as it is. Each mistake in
// the last part must fail the same check.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/spec/verify.h"
#include "tests/unit/spec_enumeration.h"
#include "tests/unit/spec_law.h"

namespace outrider {
namespace {

// A coordinator that drafts for outcomes of a round while the target judges it, and what it may do wrong.
struct AheadScheme {
  Rule rule = Rule::kToken;
  int k = 1;
  bool greedy_target = false;
  // Draws for all outcomes that are drafted for, and not only for the one that comes true. With a generator
  // that is asked by counter, this changes nothing but the number of paths.
  bool draws_unused = false;

  // The round start of a proposal that is drafted while the round that began at `in_flight` is judged.
  std::function<uint64_t(uint64_t in_flight, uint64_t tokens)> start_ahead = [](uint64_t, uint64_t tokens) {
    return tokens;
  };
  // Drafts twice where it drafts ahead, and takes the likelier proposal.
  bool takes_the_likelier = false;
};

ProposalNode DraftNode(const AheadScheme& scheme, const Pair& pair, const Tokens& before, Enumerator& noise) {
  return Propose(scheme.rule, pair.draft.Row(before), 0, before.size(), noise);
}

// The proposal that follows `tokens`.
Proposal Draft(const AheadScheme& scheme, const Pair& pair, Tokens tokens, uint64_t round_start,
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

Proposal DraftAhead(const AheadScheme& scheme, const Pair& pair, const Tokens& tokens, uint64_t in_flight,
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

// The texts after a round that are drafted for: after each number of accepted tokens, the draft's first
// choice that was not drafted, and after all of them, the token that the draft drew to follow them.
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

Verdict Judge(const AheadScheme& scheme, const Pair& pair, const Tokens& committed, const Proposal& proposal,
              Enumerator& noise) {
  noise.StartRound(committed.size());
  const auto rows = [&](int i) -> absl::StatusOr<WeightRow> {
    const WeightRow row = pair.target.Row(Join(committed, Drafted(proposal, i)));
    if (!scheme.greedy_target) return row;
    return WeightRow{.point_mass = FindMax(row.weights).index, .logits = row.weights};
  };
  return *Verify({.rule = scheme.rule}, proposal, rows, committed.size(), noise);
}

// Runs rounds until there are `length` tokens.
Tokens Text(const AheadScheme& scheme, const Pair& pair, int length, Enumerator& noise) {
  Tokens committed;
  Proposal proposal = Draft(scheme, pair, committed, 0, noise);
  while (static_cast<int>(committed.size()) < length) {
    const uint64_t n = committed.size();
    const Tokens all = Join(committed, Drafted(proposal, proposal.size()));
    noise.StartRound(all.size());
    const TokenId next = DraftNode(scheme, pair, all, noise).token;
    const std::set<Tokens> assumed = Assumed(pair, committed, proposal, next);
    std::map<Tokens, Proposal> ahead;
    if (scheme.draws_unused) {
      for (const Tokens& text : assumed) ahead[text] = DraftAhead(scheme, pair, text, n, noise);
    }

    const Verdict verdict = Judge(scheme, pair, committed, proposal, noise);
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

double WorstDeviation(const AheadScheme& scheme, int length, const std::vector<Pair>& pairs = Pairs(2)) {
  double worst = 0;
  for (const Pair& pair : pairs) {
    const auto text = [&](Enumerator& noise) { return Text(scheme, pair, length, noise); };
    worst = std::max(worst, JointDeviation(text, pair.target, length));
  }
  return worst;
}

const Rule kRatioRules[] = {Rule::kToken, Rule::kBlock};

TEST(ExactnessOfRunAhead, RatioRules) {
  for (Rule rule : kRatioRules) {
    for (int k : {0, 1}) EXPECT_LT(WorstDeviation({.rule = rule, .k = k}, 4), kExact) << "k = " << k;
    EXPECT_LT(WorstDeviation({.rule = rule, .k = 2}, 3, Pairs(1)), kExact);
  }
}

TEST(ExactnessOfRunAhead, WithNumbersDrawnForOutcomesThatDidNotComeTrue) {
  for (Rule rule : kRatioRules) {
    EXPECT_LT(WorstDeviation({.rule = rule, .k = 1, .draws_unused = true}, 3), kExact);
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
    const AheadScheme scheme = {.rule = rule, .k = 2, .greedy_target = true};
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

// ---- negative controls: mistakes that the checks above must notice

// Under the block rule, a verdict depends on tokens beyond the accepted ones. Under the token rule it does
// not, so this mistake goes unnoticed there.
TEST(NegativeControlOfRunAhead, TheNoiseOfTheRoundInFlightIsNoticedUnderTheBlockRule) {
  AheadScheme scheme = {.rule = Rule::kBlock, .k = 2};
  scheme.start_ahead = [](uint64_t in_flight, uint64_t) { return in_flight; };
  EXPECT_GT(WorstDeviation(scheme, 2, AllPairs(2)), kNoticed);
}

TEST(NegativeControlOfRunAhead, TheLikelierOfTwoProposalsIsNoticed) {
  for (Rule rule : kRatioRules) {
    AheadScheme scheme = {.rule = rule, .k = 1};
    scheme.takes_the_likelier = true;
    EXPECT_GT(WorstDeviation(scheme, 3), kNoticed);
  }
}

}  // namespace
}  // namespace outrider
