// Proves by exact enumeration that the emitted tokens have the target's distribution: over a vocabulary of
// three, over several consecutive rounds of a sequence, to 1e-12. Each mistake in the second half must fail
// the same check.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "common/spec/proposal.h"
#include "common/spec/residual.h"
#include "common/spec/verify.h"
#include "tests/unit/spec_enumeration.h"
#include "tests/unit/spec_law.h"
#include "tests/unit/spec_testing.h"

namespace outrider {
namespace {

using VerifyFunction =
    std::function<absl::StatusOr<Verdict>(std::span<const ProposalNode>, RowSource, uint64_t n, Noise&)>;

struct Scheme {
  int k = 3;
  VerifyFunction verify;
  bool coupled = false;
  std::function<Distribution(const WeightRow&)> q = [](const WeightRow& row) { return TruncateTopN(row, 0); };
  // Whether the draft ends after these tokens; all of them stay.
  std::function<bool(std::span<const ProposalNode>)> ends = [](std::span<const ProposalNode>) {
    return false;
  };
  // A mistake: takes back the last of these tokens, and ends.
  std::function<bool(std::span<const ProposalNode>)> drops = [](std::span<const ProposalNode>) {
    return false;
  };
  // A mistake: shapes every row as if no token had been drafted before it.
  bool wrong_context = false;
};

Round ChainRound(const Scheme& scheme) {
  return [scheme](const Pair& pair, const Tokens& context, Enumerator& noise) {
    const uint64_t n = context.size();
    noise.StartRound(n);
    Proposal draft;
    Tokens seen = context;
    for (int i = 0; i < scheme.k; ++i) {
      const WeightRow row = pair.draft.Row(seen);
      Distribution q = scheme.coupled ? Distribution{} : scheme.q(row);
      const TokenId x = scheme.coupled ? noise.Race(n + i, row) : DraftSample(q, n + i, noise);
      AppendToChain(x, std::move(q), draft);
      draft.back().confidence = Confidence(row);
      if (scheme.drops(draft)) {
        draft.pop_back();
        break;
      }
      seen.push_back(x);
      if (scheme.ends(draft)) break;
    }
    const auto rows = [&](int i) -> absl::StatusOr<WeightRow> {
      return pair.target.Row(scheme.wrong_context ? context : Tokens(seen.begin(), seen.begin() + n + i));
    };
    const absl::StatusOr<Verdict> verdict = scheme.verify(draft, rows, n, noise);
    EXPECT_TRUE(verdict.ok());
    Tokens emitted(seen.begin() + n, seen.begin() + n + verdict->path.size());
    emitted.push_back(verdict->token);
    return emitted;
  };
}

VerifyFunction Production(VerifyOptions options) {
  return [options](std::span<const ProposalNode> draft, RowSource rows, uint64_t n, Noise& noise) {
    return Verify(options, draft, rows, n, noise);
  };
}

Scheme With(Rule rule, int k) {
  return {.k = k, .verify = Production({.rule = rule}), .coupled = rule == Rule::kCoupled};
}

double WorstOverRounds(const Scheme& scheme, int ordinary = 12) {
  double worst = 0;
  for (const Pair& pair : Pairs(ordinary))
    worst = std::max(worst, DeviationOverRounds(ChainRound(scheme), pair));
  return worst;
}

TEST(Exactness, TokenRuleOverFourRounds) {
  for (int k : {0, 1, 2, 3}) EXPECT_LT(WorstOverRounds(With(Rule::kToken, k)), kExact) << "k = " << k;
}

TEST(Exactness, BlockRuleOverFourRounds) {
  for (int k : {0, 1, 2, 3}) EXPECT_LT(WorstOverRounds(With(Rule::kBlock, k)), kExact) << "k = " << k;
}

TEST(Exactness, RatioRulesNeverUseANumberTwiceAcrossRounds) {
  for (Rule rule : {Rule::kToken, Rule::kBlock}) {
    for (const Pair& pair : Pairs(2)) {
      bool reused = true;
      EXPECT_LT(JointDeviation(ChainRound(With(rule, 1)), pair, 3, &reused), kExact);
      EXPECT_FALSE(reused);
    }
  }
}

// The coupled rule reuses the noise of a position in the next round, on purpose.
TEST(Exactness, CoupledRuleOverRoundsThatShareNoise) {
  for (int k : {0, 1, 2, 3}) {
    for (const Pair& pair : Pairs(2)) {
      EXPECT_LT(JointDeviation(ChainRound(With(Rule::kCoupled, k)), pair, k == 3 ? 3 : 4), kExact)
          << "k = " << k;
    }
  }
}

TEST(Exactness, ASparseQThatTheDraftSampledFrom) {
  for (Rule rule : {Rule::kToken, Rule::kBlock}) {
    for (int n : {1, 2}) {
      Scheme scheme = With(rule, 3);
      scheme.q = [n](const WeightRow& row) { return TruncateTopN(row, n); };
      EXPECT_LT(WorstOverRounds(scheme, 3), kExact) << "n = " << n;
    }
  }
}

TEST(Exactness, APointMassQ) {
  for (Rule rule : {Rule::kToken, Rule::kBlock}) {
    Scheme scheme = With(rule, 3);
    scheme.q = [](const WeightRow& row) { return PointMass(FindMax(row.weights).index); };
    EXPECT_LT(WorstOverRounds(scheme, 3), kExact);
  }
}

// The scheme with the target at temperature 0.
Scheme GreedyTarget(Scheme scheme) {
  scheme.verify = [verify = scheme.verify](std::span<const ProposalNode> draft, RowSource rows, uint64_t n,
                                           Noise& noise) {
    return verify(
        draft,
        [&](int i) -> absl::StatusOr<WeightRow> {
          const WeightRow row = *rows(i);
          return WeightRow{.point_mass = FindMax(row.weights).index, .logits = row.weights};
        },
        n, noise);
  };
  return scheme;
}

// Expects the target's greedy tokens from a round of at most three drafted tokens.
void ExpectGreedy(const Scheme& scheme, const Pair& pair) {
  Tokens greedy;
  while (greedy.size() < 4) greedy.push_back(FindMax(pair.target.Row(greedy).weights).index);
  for (const auto& [tokens, probability] : LawOfARound(ChainRound(scheme), pair, {})) {
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), greedy.begin())) << probability;
  }
}

TEST(Exactness, AGreedyTargetEmitsItsArgmaxUnderEveryRule) {
  for (Rule rule : {Rule::kToken, Rule::kBlock, Rule::kCoupled}) {
    for (const Pair& pair : Pairs(4)) ExpectGreedy(GreedyTarget(With(rule, 3)), pair);
  }
}

// Ends where the draft is unsure. Its confidence in a token depends on the tokens before it.
bool EndsWhereUnsure(std::span<const ProposalNode> drafted) {
  return EndsDraft({.acceptance = {.4f, .6f, .6f, .6f, .7f, .7f, .8f, .9f}, .least = .45f}, drafted);
}

// Ends after token 1, which stays.
bool EndsAfterTokenOne(std::span<const ProposalNode> drafted) { return drafted.back().token == 1; }

TEST(ExactnessOfShortDrafts, TheirLengthDependsOnWhatWasDrawn) {
  std::set<std::set<size_t>> lengths_of_rounds;
  for (const Pair& pair : AllPairs(12)) {
    std::set<size_t> lengths;
    Scheme scheme = With(Rule::kToken, 3);
    scheme.ends = EndsWhereUnsure;
    const VerifyFunction verify = scheme.verify;
    scheme.verify = [&](std::span<const ProposalNode> draft, RowSource rows, uint64_t n, Noise& noise) {
      lengths.insert(draft.size());
      return verify(draft, rows, n, noise);
    };
    LawOfARound(ChainRound(scheme), pair, {});
    lengths_of_rounds.insert(lengths);
  }
  EXPECT_TRUE(lengths_of_rounds.contains({1}));
  EXPECT_TRUE(lengths_of_rounds.contains({2, 3})) << "by the first token";
}

void ExpectExactWhereDraftsEnd(const decltype(Scheme::ends)& ends) {
  for (Rule rule : {Rule::kToken, Rule::kBlock}) {
    for (int k : {2, 3}) {
      Scheme scheme = With(rule, k);
      scheme.ends = ends;
      EXPECT_LT(WorstOverRounds(scheme), kExact) << "k = " << k;
    }
  }
}

TEST(ExactnessOfShortDrafts, EndingByWhatIsKnownBeforeADrawIsExact) {
  ExpectExactWhereDraftsEnd(EndsWhereUnsure);
}

TEST(ExactnessOfShortDrafts, EndingAfterATokenThatStaysIsExact) {
  ExpectExactWhereDraftsEnd(EndsAfterTokenOne);
}

TEST(ExactnessOfShortDrafts, RoundsOfDifferentLengthsNeverUseANumberTwice) {
  for (Rule rule : {Rule::kToken, Rule::kBlock}) {
    Scheme scheme = With(rule, 2);
    scheme.ends = EndsWhereUnsure;
    for (const Pair& pair : Pairs(2)) {
      bool reused = true;
      EXPECT_LT(JointDeviation(ChainRound(scheme), pair, 2, &reused), kExact);
      EXPECT_FALSE(reused);
    }
  }
}

// The coupled rule emits the target's own winners, so even a token that was drawn may be taken back.
TEST(ExactnessOfShortDrafts, TheCoupledRuleIsExactHoweverADraftEnds) {
  for (const Pair& pair : Pairs(2)) {
    Scheme scheme = With(Rule::kCoupled, 2);
    scheme.ends = EndsWhereUnsure;
    EXPECT_LT(JointDeviation(ChainRound(scheme), pair, 4), kExact);
    scheme.drops = EndsAfterTokenOne;
    EXPECT_LT(JointDeviation(ChainRound(scheme), pair, 4), kExact);
  }
}

TEST(ExactnessOfShortDrafts, AGreedyTargetEmitsItsArgmaxHoweverADraftEnds) {
  for (Rule rule : {Rule::kToken, Rule::kBlock, Rule::kCoupled}) {
    Scheme scheme = GreedyTarget(With(rule, 3));
    scheme.ends = EndsWhereUnsure;
    for (const Pair& pair : Pairs(4)) ExpectGreedy(scheme, pair);
  }
}

double ExpectedEmitted(Rule rule, const Pair& pair, int k) {
  double mean = 0;
  for (const auto& [tokens, probability] : LawOfARound(ChainRound(With(rule, k)), pair, {})) {
    mean += probability * static_cast<double>(tokens.size());
  }
  return mean;
}

// Sun et al. 2403.10444, Theorem 2.
TEST(Exactness, BlockRuleNeverExpectsFewerTokensThanTokenRule) {
  double most = 0;
  for (const Pair& pair : Pairs(20)) {
    for (int k : {1, 2, 3}) {
      const double gain = ExpectedEmitted(Rule::kBlock, pair, k) - ExpectedEmitted(Rule::kToken, pair, k);
      EXPECT_GE(gain, -kExact);
      if (k == 1) {
        EXPECT_LE(gain, kExact) << "with one token they are the same";
      }
      most = std::max(most, gain);
    }
  }
  EXPECT_GT(most, 0.01);
}

TEST(Exactness, TheExpectedAcceptanceInAVerdictIsTheExpectation) {
  for (const Pair& pair : Pairs(6)) {
    Enumerator noise;
    double accepted = 0, expected = 0, square = 0, variance = 0, surprisal = 0, entropy = 0;
    Scheme scheme = With(Rule::kToken, 3);
    scheme.verify = [&](std::span<const ProposalNode> draft, RowSource rows, uint64_t n, Noise& random) {
      absl::StatusOr<Verdict> verdict = Verify({}, draft, rows, n, random);
      const double weight = noise.probability();
      accepted += weight * Accepted(*verdict);
      expected += weight * verdict->expected_accepted;
      square += weight * std::pow(Accepted(*verdict) - verdict->expected_accepted, 2);
      variance += weight * verdict->expected_variance;
      surprisal += weight * verdict->surprisal;
      entropy += weight * verdict->entropy;
      return verdict;
    };
    noise.ForEachPath([&] { ChainRound(scheme)(pair, {}, noise); });
    EXPECT_NEAR(accepted, expected, kExact);
    EXPECT_NEAR(square, variance, kExact);
    EXPECT_NEAR(surprisal, entropy, 1e-5);  // entropy is computed in float
  }
}

// Leviathan et al., appendix A.5.
TEST(Lenience, RaisesAcceptanceAndBoundsTheProbabilityOfEachToken) {
  for (const Pair& pair : Pairs(10)) {
    for (double lenience : {0.9, 0.5, 0.1}) {
      Scheme scheme = With(Rule::kToken, 1);
      scheme.verify = Production({.lenience = lenience});
      const WeightRow p = pair.target.Row({});
      const Distribution q = TruncateTopN(pair.draft.Row({}), 0);
      std::vector<double> first(kVocab);
      double accepted = 0, alpha = 0;
      for (const auto& [tokens, probability] : LawOfARound(ChainRound(scheme), pair, {})) {
        first[tokens[0]] += probability;
        if (tokens.size() == 2) accepted += probability;
      }
      for (TokenId x = 0; x < kVocab; ++x) {
        alpha += std::min(p(x) / lenience, q(x));
        EXPECT_LE(first[x], p(x) / lenience + kExact);
      }
      EXPECT_NEAR(accepted, alpha, kExact);
    }
  }
}

// ---- negative controls: mistakes that the checks above must notice

TEST(NegativeControl, ResidualSkippedIsNoticed) {
  Scheme scheme = With(Rule::kToken, 2);
  scheme.verify = [](std::span<const ProposalNode> draft, RowSource rows, uint64_t n, Noise& noise) {
    Verdict verdict;
    for (size_t i = 0;; ++i) {
      const WeightRow p = *rows(static_cast<int>(i));
      const bool stands = i < draft.size() && noise.Decide(Purpose::kAccept, n + i, 0, [&](double u) {
        return !(u * draft[i].q(draft[i].token) < p(draft[i].token));
      }) == 0;
      if (stands) continue;
      verdict.path = ChainPath(i);
      verdict.token = noise.Decide(Purpose::kBonus, n + i, 0, [&](double u) { return Sample(p, u); });
      return absl::StatusOr<Verdict>(verdict);
    }
  };
  EXPECT_GT(WorstOverRounds(scheme), kNoticed);
}

TEST(NegativeControl, QNotNormalisedAfterTruncationIsNoticed) {
  for (Rule rule : {Rule::kToken, Rule::kBlock}) {
    Scheme scheme = With(rule, 2);
    const VerifyFunction verify = scheme.verify;
    scheme.q = [](const WeightRow& row) { return TruncateTopN(row, 2); };
    scheme.verify = [verify](std::span<const ProposalNode> draft, RowSource rows, uint64_t n, Noise& noise) {
      Proposal wrong(draft.begin(), draft.end());
      for (ProposalNode& token : wrong) token.q.total *= 1.25;  // the truncated mass
      return verify(wrong, rows, n, noise);
    };
    EXPECT_GT(WorstOverRounds(scheme), kNoticed);
  }
}

// Ends the draft before a token that the draft itself finds unlikely, once that token is known.
TEST(NegativeControl, ATokenThatIsTakenBackForItsProbabilityIsNoticed) {
  for (Rule rule : {Rule::kToken, Rule::kBlock}) {
    for (size_t first : {size_t{1}, size_t{2}}) {
      Scheme scheme = With(rule, 2);
      scheme.drops = [first](std::span<const ProposalNode> drafted) {
        return drafted.size() >= first && drafted.back().q(drafted.back().token) < .4;
      };
      EXPECT_GT(WorstOverRounds(scheme), kNoticed) << "from token " << first << " on";
    }
  }
}

TEST(NegativeControl, ATokenThatIsTakenBackForItsValueIsNoticed) {
  for (Rule rule : {Rule::kToken, Rule::kBlock}) {
    Scheme scheme = With(rule, 2);
    scheme.drops = EndsAfterTokenOne;
    EXPECT_GT(WorstOverRounds(scheme), kNoticed);
  }
}

// A whole proposal that is lost because of its tokens, as if they had made it late.
TEST(NegativeControl, AProposalThatIsDroppedForItsValuesIsNoticed) {
  for (Rule rule : {Rule::kToken, Rule::kBlock}) {
    Scheme scheme = With(rule, 2);
    const VerifyFunction verify = scheme.verify;
    scheme.verify = [verify](std::span<const ProposalNode> draft, RowSource rows, uint64_t n, Noise& noise) {
      const bool late = draft.size() == 2 && !EndsWhereUnsure(draft);
      return verify(late ? std::span<const ProposalNode>() : draft, rows, n, noise);
    };
    EXPECT_GT(WorstOverRounds(scheme), kNoticed);
  }
}

TEST(NegativeControl, AnotherPositionsContextIsNoticed) {
  for (Rule rule : {Rule::kToken, Rule::kBlock}) {
    Scheme scheme = With(rule, 2);
    scheme.wrong_context = true;
    EXPECT_GT(WorstOverRounds(scheme), kNoticed);
  }
}

TEST(NegativeControl, AnotherPositionsContextIsNoticedUnderTheCoupledRule) {
  Scheme scheme = With(Rule::kCoupled, 2);
  scheme.wrong_context = true;
  double worst = 0;
  for (const Pair& pair : Pairs(2)) worst = std::max(worst, JointDeviation(ChainRound(scheme), pair, 3));
  EXPECT_GT(worst, kNoticed);
}

// Whether a token of probability 0 is accepted if the random number is 0. Integration cannot see this case,
// which has measure 0.
bool AcceptsTheImpossible(const VerifyFunction& verify) {
  const TestRow target = {0, 1, 1};
  ScriptedNoise noise({0.0, 0.0});
  const Proposal draft = Chain({{0, Dense({1, 0, 0})}});
  return verify(
             draft, [&](int) -> absl::StatusOr<WeightRow> { return target.row(); }, 0, noise)
             ->path.size() > 0;
}

TEST(NegativeControl, LessOrEqualInsteadOfLessIsNoticed) {
  EXPECT_FALSE(AcceptsTheImpossible(Production({})));
  EXPECT_FALSE(AcceptsTheImpossible(Production({.rule = Rule::kBlock})));
  EXPECT_TRUE(
      AcceptsTheImpossible([](std::span<const ProposalNode> draft, RowSource rows, uint64_t n, Noise& noise) {
        Verdict verdict;
        const WeightRow p = *rows(0);
        verdict.path = ChainPath(1 - noise.Decide(Purpose::kAccept, n, 0, [&](double u) {
          return !(u * draft[0].q(draft[0].token) <= p(draft[0].token));
        }));
        return absl::StatusOr<Verdict>(verdict);
      }));
}

TEST(NegativeControl, OneStreamForDraftAndAcceptIsNoticed) {
  for (Rule rule : {Rule::kToken, Rule::kBlock}) {
    double worst = 0;
    for (const Pair& pair : Pairs(4)) {
      worst = std::max(worst, JointDeviation(ChainRound(With(rule, 1)), pair, 2, nullptr,
                                             Enumerator::Keying::kOneStreamForDraftAndAccept));
    }
    EXPECT_GT(worst, kNoticed);
  }
}

// The block rule, but its loop ends at the first prefix that fails.
absl::StatusOr<Verdict> BlockThatStopsAtTheFirstFailure(std::span<const ProposalNode> draft, RowSource rows,
                                                        uint64_t n, Noise& noise) {
  Verdict verdict;
  double ratio = 1, longest_ratio = 1;
  WeightRow longest_row = *rows(0);
  WeightRow row = longest_row;
  for (size_t i = 1; i <= draft.size(); ++i) {
    ratio = std::min(ratio * row(draft[i - 1].token) / draft[i - 1].q(draft[i - 1].token), 1.0);
    row = *rows(static_cast<int>(i));
    double h = ratio;
    if (i < draft.size()) {
      const double overlap = Overlap(row, draft[i].q, ratio);
      h = overlap < 1 ? (ratio - overlap) / (1 - overlap) : 1;
    }
    if (noise.Decide(Purpose::kAccept, n + i - 1, 0, [h](double u) { return !(u < h); }) != 0) break;
    verdict.path = ChainPath(i);
    longest_ratio = ratio;
    longest_row = row;
  }
  const size_t accepted = verdict.path.size();
  const uint64_t position = n + accepted;
  if (accepted == draft.size()) {
    verdict.token =
        noise.Decide(Purpose::kBonus, position, 0, [&](double u) { return Sample(longest_row, u); });
  } else {
    Residual residual(longest_row, longest_ratio);
    residual.Subtract(draft[accepted].q);
    verdict.token =
        noise.Decide(Purpose::kResidual, position, 0, [&](double u) { return residual.Sample(u); });
  }
  return verdict;
}

TEST(NegativeControl, BlockRuleStoppingAtTheFirstFailureIsNoticed) {
  Scheme scheme = With(Rule::kBlock, 2);
  scheme.verify = BlockThatStopsAtTheFirstFailure;
  EXPECT_GT(WorstOverRounds(scheme), kNoticed);
  scheme.k = 1;
  EXPECT_LT(WorstOverRounds(scheme), kExact) << "with one token there is nothing to stop early";
}

TEST(NegativeControl, BlockRuleWithNoiseKeyedByPositionOnlyIsNoticed) {
  double worst = 0;
  for (const Pair& pair : AllPairs(2)) {
    worst = std::max(worst, JointDeviation(ChainRound(With(Rule::kBlock, 2)), pair, 2, nullptr,
                                           Enumerator::Keying::kPositionOnly));
  }
  EXPECT_GT(worst, kNoticed);
}

}  // namespace
}  // namespace outrider
