// The device's verdicts against those of common/spec.
#include <gtest/gtest.h>

#include "common/engine/cuda/decide_rows.h"
#include "common/spec/team/row_draw.h"
#include "common/spec/team/row_verify.h"
#include "tests/unit/decide_cases.h"
#include "tests/unit/some_of.h"

namespace outrider::cuda {
namespace {

constexpr int kVerifySizes[] = {2, 3, 17, 100, 256, 300, 1500};

Case AnyCase(Generator& random) {
  return RandomCase(random, kVerifySizes[Pick(random, std::size(kVerifySizes))]);
}

// The device's verdict, in a batch with the rows and drafts of other sequences.
absl::StatusOr<Verdict> OnTheDevice(const Case& c, int threads) {
  constexpr int kRowsBefore = 2, kDraftedBefore = 3, kEntriesBefore = 5;
  const size_t vocab = c.vocab;
  const size_t rows = kRowsBefore + c.logits.size();
  std::vector<float> weights(rows * vocab, -1.0f);
  std::vector<ShapedRow> shaped(rows);
  std::vector<int32_t> races(rows, -1);
  for (size_t i = 0; i < c.logits.size(); ++i) {
    std::copy(c.logits[i].begin(), c.logits[i].end(), weights.begin() + (kRowsBefore + i) * vocab);
  }
  std::vector<DraftedToken> drafted(kDraftedBefore + c.draft.size());
  std::vector<int32_t> q_ids(kEntriesBefore + c.draft.size() * kMaxTopN, -1);
  std::vector<float> q_weights(q_ids.size());
  PackDraft(c.draft, kEntriesBefore, drafted.data() + kDraftedBefore, q_ids.data(), q_weights.data());
  const int count = static_cast<int>(c.draft.size());
  const VerifyInput input = ToVerifyInput(c.key, c.rule, c.round_start, kRowsBefore, kDraftedBefore, count);
  const ShapeParams shape = ToShapeParams(c.sampling, /*entropy=*/true);
  VerifyOutput output;
  std::memset(static_cast<void*>(&output), 0xa5, sizeof(output));
  OnTeam(threads, [&](HostTeam& team) {
    for (size_t row = kRowsBefore; row < rows; ++row) {
      ShapeRow(team, &weights[row * vocab], c.vocab, shape.controls, true, &shaped[row]);
      team.Sync();
      if (input.coupled == 0 || shaped[row].finite == 0 || shaped[row].point_mass >= 0) continue;
      const int winner =
          RaceRow(team, &weights[row * vocab], c.vocab, input.key, input.round_start + (row - kRowsBefore));
      if (team.rank() == 0) races[row] = winner;
      team.Sync();
    }
    VerifySequence(team, weights.data(), c.vocab, shaped.data(), races.data(), input, drafted.data(),
                   q_ids.data(), q_weights.data(), &output);
  });
  return ToVerdict(output, count);
}

void ExpectSameVerdicts(int threads, int cases, uint64_t seed) {
  Generator random(seed);
  int kinds[3] = {};
  for (int i = 0; i < cases && !testing::Test::HasFailure(); ++i) {
    const Case c = AnyCase(random);
    const absl::StatusOr<Verdict> expected = OnTheHost(c);
    const absl::StatusOr<Verdict> verdict = OnTheDevice(c, threads);
    ASSERT_TRUE(expected.ok() && verdict.ok());
    EXPECT_TRUE(Same(*verdict, *expected)) << "case " << i << "\n"
                                           << Text(*verdict) << "\n"
                                           << Text(*expected);
    ++kinds[static_cast<int>(expected->kind)];
  }
  for (const int kind : kinds) EXPECT_GT(kind, 0);
}

TEST(DeviceVerify, OneThreadJudgesAsTheHostDoes) { ExpectSameVerdicts(1, SomeOf(6000), 1); }
TEST(DeviceVerify, SevenThreadsJudgeAsTheHostDoes) { ExpectSameVerdicts(7, 60, 2); }
TEST(DeviceVerify, ThirtyTwoThreadsJudgeAsTheHostDoes) { ExpectSameVerdicts(32, 24, 3); }

// How many verdicts on altered inputs equal those on the original ones.
template <class Alter>
int StillTheSame(int cases, const Alter& alter) {
  Generator random(4);
  int same = 0;
  for (int i = 0; i < cases; ++i) {
    Case c = AnyCase(random);
    const absl::StatusOr<Verdict> expected = OnTheHost(c);
    alter(c);
    const absl::StatusOr<Verdict> verdict = OnTheDevice(c, 1);
    same += Same(*verdict, *expected);
  }
  return same;
}

// The comparison must catch the mistakes of a careless implementation.
TEST(DeviceVerify, TheWrongNoiseIsNoticed) {
  EXPECT_EQ(StillTheSame(500, [](Case&) {}), 500);
  EXPECT_LT(StillTheSame(500, [](Case& c) { ++c.round_start; }), 400);
  EXPECT_LT(StillTheSame(500, [](Case& c) { ++c.key.sample_index; }), 400);
}

TEST(DeviceVerify, AQThatWasNotSampledFromIsNoticed) {
  const auto alter = [](Case& c) {
    for (ProposalNode& token : c.draft) {
      if (token.q.form != Distribution::Form::kSparse) continue;
      token.q.weights.back() *= 1.0001f;
      token.q.total = SumWeights(token.q.weights);
    }
  };
  EXPECT_LT(StillTheSame(500, alter), 450);
}

TEST(DeviceVerify, ARowThatIsNotFiniteMattersOnlyWhereItIsReached) {
  Generator random(5);
  int errors = 0, verdicts = 0;
  for (int i = 0; i < SomeOf(600); ++i) {
    Case c = AnyCase(random);
    std::vector<float>& row = c.logits[Pick(random, static_cast<int>(c.logits.size()))];
    row[Pick(random, c.vocab)] =
        OneOf(random, {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()});
    const absl::StatusOr<Verdict> expected = OnTheHost(c);
    const absl::StatusOr<Verdict> verdict = OnTheDevice(c, i % 50 == 0 ? 3 : 1);
    EXPECT_EQ(verdict.status(), expected.status());
    if (verdict.ok() && expected.ok()) {
      EXPECT_TRUE(Same(*verdict, *expected));
    }
    ++(expected.ok() ? verdicts : errors);
  }
  EXPECT_GT(errors, SomeOf(100));
  EXPECT_GT(verdicts, SomeOf(30));
}

// p and q agree except for rounding, so sometimes the residual is empty after a rejection.
TEST(DeviceVerify, AnEmptyResidualIsThatOfTheHost) {
  Case c;
  c.vocab = 4;
  c.logits = {{0, 0, 0, 0}, {0, 0, 0, 0}};
  Distribution q;
  q.form = Distribution::Form::kSparse;
  q.ids = {0, 1, 2, 3};
  q.weights = {0.25f, 0.25f, 0.25f, 0.25f};
  // q exceeds p by the smallest amount, at the drafted token and at all others, so the residual is empty.
  q.total = std::nextafter(1.0, 0.0);
  AppendToChain(2, q, c.draft);
  int empty = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    c.key.seed = seed;
    const absl::StatusOr<Verdict> expected = OnTheHost(c), verdict = OnTheDevice(c, 1);
    EXPECT_TRUE(Same(*verdict, *expected));
  }
  // All of p, and nearly all of q, is on one token. This tests the residual's own code.
  const std::vector<float> weights = {0, 0, 3, 0};
  const DraftedToken drafted{1, 1, QForm::kSparse, 0, 2};
  const int32_t ids[] = {1, 2};
  const float q_weights[] = {1e-30f, 1};
  OnTeam(1, [&](HostTeam& team) {
    const TargetRow row{weights.data(), 4, {3, 0, -1, 1}};
    const RowRest rest(team, row, QOf(drafted, ids, q_weights));
    EXPECT_EQ(rest.Sample(Uniform({1, 2}, 0, Purpose::kResidual, 0, 3)), 2);
    empty += rest.empty();
  });
  EXPECT_EQ(empty, 1);
}

}  // namespace
}  // namespace outrider::cuda
