#include "common/spec/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "common/spec/residual.h"
#include "tests/unit/spec_testing.h"

namespace outrider {
namespace {

using testing::ElementsAre;
using Kind = Verdict::Kind;
using Question = ScriptedNoise::Question;

constexpr uint64_t kStart = 100;
constexpr double kAlmostOne = 1 - 0x1.0p-53;

Verdict Judge(const VerifyOptions& options, const Proposal& draft, const std::vector<WeightRow>& rows,
              Noise& noise) {
  size_t asked = 0;
  const absl::StatusOr<Verdict> verdict = Verify(
      options, draft,
      [&](int i) -> absl::StatusOr<WeightRow> {
        EXPECT_EQ(i, static_cast<int>(asked++)) << "rows are asked for in order, once";
        EXPECT_LT(asked, rows.size() + 1);
        return rows[i];
      },
      kStart, noise);
  EXPECT_TRUE(verdict.ok()) << verdict.status();
  return *verdict;
}

// p and q over four tokens; sum min(p, q) = 2/3 and norm(max(p - q, 0)) = [.5, 0, 0, .5].
const TestRow kTarget = {3, 1, 1, 1};
const std::vector<float> kProposed = {2, 2, 2, 0};

TEST(VerifyDraft, HandWorkedExample) {
  const Distribution q = Dense(kProposed);
  EXPECT_DOUBLE_EQ(Overlap(kTarget, q), 2.0 / 3);
  const WeightRow p = kTarget;
  Residual residual(p);
  residual.Subtract(q);
  EXPECT_DOUBLE_EQ(residual.mass(), 1.0 / 3);
  EXPECT_EQ(residual.Sample(0), 0);
  EXPECT_EQ(residual.Sample(0.4999), 0);
  EXPECT_EQ(residual.Sample(0.5001), 3);
  EXPECT_EQ(residual.Sample(kAlmostOne), 3);
}

TEST(VerifyDraft, AcceptsATokenThatTheTargetLikesBetterWhateverTheNumber) {
  ScriptedNoise noise({kAlmostOne, 0.99});
  const Verdict verdict = Judge({}, Chain({{0, Dense(kProposed)}}), {kTarget, kTarget}, noise);
  EXPECT_EQ(Accepted(verdict), 1);
  EXPECT_EQ(verdict.kind, Kind::kBonus);
  EXPECT_EQ(verdict.token, 3);
  EXPECT_THAT(noise.asked,
              ElementsAre(Question{Purpose::kAccept, kStart}, Question{Purpose::kBonus, kStart + 1}));
}

TEST(VerifyDraft, AcceptsBelowTheRatioAndRejectsAtIt) {
  // p(1) / q(1) = (1/6) / (1/3) = 1/2.
  ScriptedNoise below({0.4999, 0.0});
  EXPECT_EQ(Accepted(Judge({}, Chain({{1, Dense(kProposed)}}), {kTarget, kTarget}, below)), 1);
  ScriptedNoise above({0.5001, 0.0});
  EXPECT_EQ(Accepted(Judge({}, Chain({{1, Dense(kProposed)}}), {kTarget, kTarget}, above)), 0);
}

TEST(VerifyDraft, RejectedTokenIsReplacedFromTheResidual) {
  ScriptedNoise noise({0.9, 0.7});
  const Verdict verdict = Judge({}, Chain({{1, Dense(kProposed)}, {0, Dense(kProposed)}}), {kTarget}, noise);
  EXPECT_EQ(Accepted(verdict), 0);
  EXPECT_EQ(verdict.token, 3);
  EXPECT_EQ(verdict.kind, Kind::kCorrected);
  EXPECT_FALSE(verdict.empty_residual);
  EXPECT_THAT(noise.asked,
              ElementsAre(Question{Purpose::kAccept, kStart}, Question{Purpose::kResidual, kStart}));
}

TEST(VerifyDraft, NeverAcceptsATokenOfProbabilityZeroAlsoWhenTheNumberIsZero) {
  const TestRow target = {0, 1, 1, 0};
  ScriptedNoise noise({0.0, 0.0});
  const Verdict verdict = Judge({}, Chain({{0, Dense({1, 0, 0, 0})}}), {target}, noise);
  EXPECT_EQ(Accepted(verdict), 0);
  EXPECT_EQ(verdict.token, 1);
}

TEST(VerifyDraft, CountsTheNodesThatItLookedAtTheRejectedOneIncluded) {
  const Proposal draft = Chain({{0, Dense(kProposed)}, {1, Dense(kProposed)}, {0, Dense(kProposed)}});
  ScriptedNoise second({0.0, 0.9, 0.0}), none({0.0, 0.0, 0.0, 0.0}), first({0.9, 0.0});
  EXPECT_EQ(Judge({}, draft, {kTarget, kTarget}, second).judged, 2);
  EXPECT_EQ(Judge({}, draft, {kTarget, kTarget, kTarget, kTarget}, none).judged, 3) << "the bonus is no node";
  EXPECT_EQ(Judge({}, Chain({{1, Dense(kProposed)}}), {kTarget}, first).judged, 1);
  ScriptedNoise plain({0.0});
  EXPECT_EQ(Judge({}, {}, {kTarget}, plain).judged, 0);
}

TEST(VerifyDraft, OnlyExactRoundsHaveAnExpectation) {
  const Proposal draft = Chain({{0, Dense(kProposed)}});
  ScriptedNoise exact({0.0, 0.0}), lenient({0.0, 0.0});
  EXPECT_DOUBLE_EQ(Judge({}, draft, {kTarget, kTarget}, exact).expected_accepted, 2.0 / 3);
  const Verdict verdict = Judge({.lenience = 0.5}, draft, {kTarget, kTarget}, lenient);
  EXPECT_EQ(verdict.expected_accepted, 0);
  EXPECT_EQ(verdict.expected_variance, 0);
}

TEST(VerifyDraft, WithoutADraftIsPlainDecoding) {
  ScriptedNoise noise({0.6});
  const Verdict verdict = Judge({}, {}, {kTarget}, noise);
  EXPECT_EQ(Accepted(verdict), 0);
  EXPECT_EQ(verdict.kind, Kind::kPlain);
  EXPECT_EQ(verdict.token, 1);
  EXPECT_THAT(noise.asked, ElementsAre(Question{Purpose::kBonus, kStart}));
}

TEST(VerifyDraft, AllFormsOfTheSameQGiveTheSameVerdict) {
  for (double u : {0.1, 0.3, 0.49, 0.51, 0.9}) {
    for (double v : {0.0, 0.3, 0.6, 0.99}) {
      ScriptedNoise one({u, v}), two({u, v});
      const Verdict dense = Judge({}, Chain({{1, Dense(kProposed)}}), {kTarget, kTarget}, one);
      const Verdict sparse = Judge({}, Chain({{1, Sparse({0, 1, 2}, {2, 2, 2})}}), {kTarget, kTarget}, two);
      EXPECT_EQ(Accepted(dense), Accepted(sparse));
      EXPECT_EQ(dense.token, sparse.token);
      EXPECT_DOUBLE_EQ(dense.expected_accepted, sparse.expected_accepted);
    }
  }
}

TEST(VerifyDraft, APointMassIsAcceptedWithItsProbabilityAndNeverDrawnAgain) {
  ScriptedNoise accepted({0.4999, 0.0});
  EXPECT_EQ(Accepted(Judge({}, Chain({{0, PointMass(0)}}), {kTarget, kTarget}, accepted)), 1);
  for (double v : {0.0, 0.2, 0.5, 0.99}) {
    ScriptedNoise rejected({0.5001, v});
    const Verdict verdict = Judge({}, Chain({{0, PointMass(0)}}), {kTarget}, rejected);
    EXPECT_EQ(Accepted(verdict), 0);
    EXPECT_NE(verdict.token, 0);
  }
}

TEST(VerifyDraft, AnEmptyResidualDrawsFromTheTargetAndSaysSo) {
  // In practice only rounding leads here. A q that sums to more than 1 forces it.
  Distribution q = Dense({1, 1, 1, 1});
  q.total = 0.5;
  ScriptedNoise noise({0.9, 0.6});
  const Verdict verdict = Judge({}, Chain({{1, q}}), {kTarget}, noise);
  EXPECT_EQ(Accepted(verdict), 0);
  EXPECT_TRUE(verdict.empty_residual);
  EXPECT_EQ(verdict.token, 1);
}

TEST(VerifyDraft, GreedyAcceptsWhileTheDraftIsTheArgmaxAndNeedsNoNoise) {
  const std::vector<float> first = {0, 2, 1, 2}, second = {5, 1, 1, 1};
  ScriptedNoise noise({});
  const std::vector<WeightRow> rows = {Greedy(first), Greedy(second), Greedy(first)};
  const Verdict full = Judge({}, Chain({{1, PointMass(1)}, {0, PointMass(0)}}), rows, noise);
  EXPECT_EQ(Accepted(full), 2);
  EXPECT_EQ(full.token, 1);
  EXPECT_EQ(full.surprisal, 0);
  const Verdict tie = Judge({}, Chain({{3, Dense({1, 1, 1, 1})}}), {Greedy(first)}, noise);
  EXPECT_EQ(Accepted(tie), 0) << "ties go to the lowest id";
  EXPECT_EQ(tie.token, 1);
}

TEST(VerifyDraft, CanariesAddUpOverThePositionsThatWereReached) {
  ScriptedNoise noise({0.0, 0.9, 0.0});
  const Proposal draft = Chain({{0, Dense(kProposed)}, {1, Dense(kProposed)}, {0, Dense(kProposed)}});
  const Verdict verdict = Judge({}, draft, {kTarget, kTarget}, noise);
  EXPECT_EQ(Accepted(verdict), 1);
  EXPECT_EQ(verdict.token, 0);
  EXPECT_DOUBLE_EQ(verdict.expected_accepted, 4.0 / 3);
  EXPECT_DOUBLE_EQ(verdict.expected_variance, 4.0 / 9);
  EXPECT_DOUBLE_EQ(verdict.surprisal, 2 * std::log(2.0));
  EXPECT_NEAR(verdict.entropy, 2 * (0.5 * std::log(2.0) + 0.5 * std::log(6.0)), 1e-6);
  EXPECT_THAT(verdict.log_probabilities,
              ElementsAre(testing::DoubleEq(-std::log(2.0)), testing::DoubleEq(-std::log(2.0))));
}

TEST(VerifyDraft, AnErrorOfARowEndsTheVerification) {
  ScriptedNoise noise({0.0});
  const Proposal draft = Chain({{0, Dense(kProposed)}});
  const auto rows = [](int i) -> absl::StatusOr<WeightRow> {
    if (i == 0) return kTarget.row();
    return absl::InternalError("logits_not_finite");
  };
  EXPECT_EQ(Verify({}, draft, rows, kStart, noise).status().code(), absl::StatusCode::kInternal);
}

TEST(VerifyDraft, RatioRulesNeedQ) {
  ScriptedNoise noise({});
  const auto rows = [](int) -> absl::StatusOr<WeightRow> { return kTarget.row(); };
  for (Rule rule : {Rule::kToken, Rule::kBlock}) {
    const Proposal draft = Chain({{0, Distribution{}}});
    EXPECT_EQ(Verify({.rule = rule}, draft, rows, kStart, noise).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(VerifyDraft, LenienceIsRefusedOutsideItsRangeAndRule) {
  EXPECT_TRUE(ValidateVerifyOptions({.lenience = 0.3}).ok());
  for (double l : {0.0, -0.5, 1.1, std::nan("")})
    EXPECT_FALSE(ValidateVerifyOptions({.lenience = l}).ok()) << l;
  EXPECT_FALSE(ValidateVerifyOptions({.rule = Rule::kBlock, .lenience = 0.5}).ok());
  EXPECT_FALSE(ValidateVerifyOptions({.rule = Rule::kCoupled, .lenience = 0.5}).ok());
}

TEST(VerifyDraft, LenienceScalesQ) {
  // p(1) / (q(1) / 2) = 1: always accepted.
  ScriptedNoise noise({kAlmostOne, 0.0});
  EXPECT_EQ(Accepted(Judge({.lenience = 0.5}, Chain({{1, Dense(kProposed)}}), {kTarget, kTarget}, noise)), 1);
}

TEST(VerifyDraft, LenienceAtTemperatureZeroComparesWithTheBestToken) {
  const std::vector<float> logits = {0, std::log(0.6f), std::log(0.4f), -5};
  for (const auto& [token, accepted] : {std::pair{0, 1}, {1, 1}, {2, 0}, {3, 0}}) {
    ScriptedNoise noise({});
    const std::vector<WeightRow> rows = {Greedy(logits), Greedy(logits)};
    const Verdict verdict = Judge({.lenience = 0.5}, Chain({{token, PointMass(token)}}), rows, noise);
    EXPECT_EQ(Accepted(verdict), accepted) << token;
    const TokenId first = accepted == 1 ? token : 0;
    EXPECT_NEAR(verdict.log_probabilities[0], logits[static_cast<size_t>(first)] - LogSumExp(logits), 1e-6);
    EXPECT_TRUE(std::isfinite(verdict.surprisal)) << "a coordinator refuses any other verdict";
  }
}

TEST(VerifyBlock, ALongerPrefixMayPassAfterAShorterOneFailed) {
  // Token 1 halves the ratio, token 0 raises it again by 3/2: ratios 1, .5, .75.
  const Distribution q = Dense(kProposed);
  const Proposal draft = Chain({{1, q}, {0, q}});
  // Prefix 1 fails (h = 1/7), prefix 2 passes (.74 < .75).
  ScriptedNoise noise({0.9, 0.74, 0.9});
  const Verdict verdict = Judge({.rule = Rule::kBlock}, draft, {kTarget, kTarget, kTarget}, noise);
  EXPECT_EQ(Accepted(verdict), 2);
  EXPECT_EQ(verdict.kind, Kind::kBonus);
  EXPECT_EQ(verdict.log_probabilities.size(), 3u);
  EXPECT_THAT(noise.asked,
              ElementsAre(Question{Purpose::kAccept, kStart}, Question{Purpose::kAccept, kStart + 1},
                          Question{Purpose::kBonus, kStart + 2}));
}

TEST(VerifyBlock, AShorterPrefixStandsWhenTheLongerOneFails) {
  const Distribution q = Dense(kProposed);
  const Proposal draft = Chain({{1, q}, {0, q}});
  // ratio 1 is .5: overlap = min(.25, 1/3) + 2 * 1/12 = 5/12, h = (1/2 - 5/12) / (7/12) = 1/7.
  // Its correction comes from max(p / 2 - q, 0) = [0, 0, 0, 1/12].
  ScriptedNoise noise({1.0 / 7 - 1e-9, 0.76, 0.5});
  const Verdict verdict = Judge({.rule = Rule::kBlock}, draft, {kTarget, kTarget, kTarget}, noise);
  EXPECT_EQ(Accepted(verdict), 1);
  EXPECT_EQ(verdict.token, 3);
  EXPECT_EQ(verdict.kind, Kind::kCorrected);
  ScriptedNoise other({1.0 / 7 + 1e-9, 0.76, 0.5});
  EXPECT_EQ(Accepted(Judge({.rule = Rule::kBlock}, draft, {kTarget, kTarget, kTarget}, other)), 0);
}

TEST(VerifyBlock, WithOneDraftedTokenIsTheTokenRule) {
  for (double u : {0.1, 0.4999, 0.5001, 0.9}) {
    ScriptedNoise token({u, 0.7}), block({u, 0.7});
    const Proposal draft = Chain({{1, Dense(kProposed)}});
    const Verdict a = Judge({}, draft, {kTarget, kTarget}, token);
    const Verdict b = Judge({.rule = Rule::kBlock}, draft, {kTarget, kTarget}, block);
    EXPECT_EQ(Accepted(a), Accepted(b));
    EXPECT_EQ(a.token, b.token);
  }
}

TEST(VerifyCoupled, EmitsTheTargetsRaceWhateverTheDraftSays) {
  const RandomKey key{5, 6};
  PhiloxNoise noise(key, kStart);
  const TokenId first = Race(kTarget, key, kStart), second = Race(kTarget, key, kStart + 1);
  const std::vector<WeightRow> rows = {kTarget, kTarget};
  const Verdict agree = Judge({.rule = Rule::kCoupled}, Chain({{first, Distribution{}}}), rows, noise);
  EXPECT_EQ(Accepted(agree), 1);
  EXPECT_EQ(agree.token, second);
  const Verdict differ =
      Judge({.rule = Rule::kCoupled}, Chain({{(first + 1) % 4, Distribution{}}}), rows, noise);
  EXPECT_EQ(Accepted(differ), 0);
  EXPECT_EQ(differ.token, first);
}

// Draft and target may be different programs, so the race is that of verify.h to the bit of its counters.
TEST(VerifyCoupled, TheRaceIsTheOneOfTheWireContract) {
  const std::vector<float> weights = {1, 2, 0, 1.5, 1, 3, 0.25, 2, 1, 0.5, 4};
  const TestRow row(weights);
  const RandomKey key = {.seed = 5, .sample_index = 6};
  std::set<TokenId> winners;
  for (uint64_t position = 0; position < 200; ++position) {
    TokenId winner = -1;
    double earliest = 0;
    for (TokenId x = 0; x < static_cast<TokenId>(weights.size()); ++x) {
      if (weights[x] == 0) continue;
      const auto bits = RandomBits(
          key, {position, static_cast<uint64_t>(Purpose::kGumbel), static_cast<uint64_t>(x / 4), 0});
      const double arrival = -std::log1p(-UnitInterval(bits[x % 4])) / weights[x];
      if (winner >= 0 && arrival >= earliest) continue;
      winner = x;
      earliest = arrival;
    }
    ASSERT_EQ(Race(row, key, position), winner) << "position " << position;
    winners.insert(winner);
  }
  EXPECT_GT(winners.size(), 5u);
}

TEST(VerifyCoupled, TheRaceDoesNotDependOnTheScaleOfTheWeights) {
  for (uint64_t position = 0; position < 200; ++position) {
    EXPECT_EQ(Race(TestRow{3, 1, 0, 1, 2}, {1, 1}, position),
              Race(TestRow{12, 4, 0, 4, 8}, {1, 1}, position));
    EXPECT_NE(Race(TestRow{3, 1, 0, 1, 2}, {1, 1}, position), 2);
  }
}

}  // namespace
}  // namespace outrider
