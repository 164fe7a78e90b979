// The device's draws from a row, against common/spec: samples, residuals, races, truncated distributions, and
// complete proposals against the draft service's on the host.
#include <gtest/gtest.h>

#include "common/engine/cuda/decide_rows.h"
#include "common/spec/distribution.h"
#include "common/spec/residual.h"
#include "common/spec/team/row_draw.h"
#include "common/spec/team/row_verify.h"
#include "common/spec/verify.h"
#include "common/spec/weights.h"
#include "tests/unit/decide_cases.h"
#include "tests/unit/some_of.h"

namespace outrider::cuda {
namespace {

constexpr int kDrawSizes[] = {2, 5, 16, 31, 256, 257, 1000, 2049, 4100};

// The result of thread 0 of a team.
template <class T, class Work>
T FromTeam(TeamSize size, const Work& work) {
  T result{};
  OnTeam(size, [&](HostTeam& team) {
    const T mine = work(team);
    if (team.rank() == 0) result = mine;
  });
  return result;
}

struct Shaped {
  std::vector<float> weights;
  WeightRow row;
};

// A row shaped by the reference's code, so that these tests are about the draws alone.
Shaped RandomRow(Generator& random, int vocab, SamplingParams params) {
  Shaped shaped;
  shaped.weights = RandomLogits(random, vocab);
  absl::StatusOr<Controls> controls = Controls::Create(std::move(params), 0, vocab);
  shaped.row = *controls->Apply({}, shaped.weights);
  return shaped;
}

ShapedRow AsShaped(const WeightRow& row) { return {row.total, Entropy(row), row.point_mass, 1}; }

double EdgyUniform(Generator& random) {
  const double u = std::uniform_real_distribution<double>(0, 1)(random);
  return OneOf(random, {u, u, u, u, 0.0, 0.5, 1 - 0x1p-53, 0x1p-53});
}

TEST(DeviceDraw, UniformNumbersAreThoseOfTheSpecification) {
  Generator random(1);
  for (int i = 0; i < SomeOf(1000); ++i) {
    const RandomKey key{random(), random()};
    const uint64_t position = random(), round_start = random();
    for (const Purpose purpose : {Purpose::kDraft, Purpose::kAccept, Purpose::kResidual, Purpose::kBonus}) {
      const RoundNoise noise{key, round_start};
      double u = -1;
      noise.Test(purpose, position, 0, [&](double number) { return (u = number) < 0.5; });
      EXPECT_EQ(u, Uniform(key, position, purpose, 0, round_start));
    }
  }
}

TEST(DeviceDraw, SamplesAreThoseOfTheSpecification) {
  Generator random(2);
  for (int i = 0; i < SomeOf(3000); ++i) {
    const int vocab = kDrawSizes[Pick(random, std::size(kDrawSizes))];
    const Shaped p = RandomRow(random, vocab, Sampling(1, OneOf(random, {0, 0, 3, 40})));
    const double u = EdgyUniform(random);
    const int threads = i % 200 == 0 ? 7 : 1;
    const int token = FromTeam<int>(threads, [&](HostTeam& team) {
      return SampleIndex(team, FloatRow{p.weights.data()}, vocab, p.row.total, u);
    });
    EXPECT_EQ(token, Sample(p.row, u));
  }
}

// A threshold at or beyond the row's sum, which rounding can cause.
TEST(DeviceDraw, BeyondTheEndTheLastTokenWithAnyWeightIsDrawn) {
  std::vector<float> weights(1000, 0.0f);
  weights[3] = weights[700] = 1;
  for (const int threads : {1, 7}) {
    for (const double total : {2.0, 2.5}) {
      EXPECT_EQ(FromTeam<int>(threads,
                              [&](HostTeam& team) {
                                return SampleIndex(team, FloatRow{weights.data()}, 1000, total, 1.0);
                              }),
                700);
    }
  }
}

// A sparse q over a row, or a point mass: entries above p, below p, and outside its support.
Distribution RandomQ(Generator& random, const WeightRow& p) {
  Distribution q;
  const int vocab = static_cast<int>(p.vocab());
  if (Pick(random, 4) == 0) {
    q.form = Distribution::Form::kPointMass;
    q.ids = {Pick(random, vocab)};
    q.total = 1;
    return q;
  }
  q.form = Distribution::Form::kSparse;
  const int wanted = 1 + Pick(random, std::min(vocab, kMaxTopN));
  for (int i = 0; i < wanted; ++i) q.ids.push_back(Pick(random, vocab));
  std::sort(q.ids.begin(), q.ids.end());
  q.ids.erase(std::unique(q.ids.begin(), q.ids.end()), q.ids.end());
  for (const TokenId id : q.ids) {
    q.weights.push_back((p.point_mass < 0 ? p.weights[id] : 1) *
                            std::exp(std::normal_distribution<float>(0, 1)(random)) +
                        (Pick(random, 5) == 0 ? 0.01f : 0));
  }
  q.weights[Pick(random, static_cast<int>(q.weights.size()))] += 0.5f;
  q.total = SumWeights(q.weights);
  return q;
}

TEST(DeviceDraw, ResidualsAreThoseOfTheSpecification) {
  Generator random(3);
  int with_tail = 0;
  for (int i = 0; i < SomeOf(3000); ++i) {
    const int vocab = kDrawSizes[Pick(random, std::size(kDrawSizes))];
    const Shaped p = RandomRow(random, vocab, Sampling(1, OneOf(random, {0, 0, 3, 40})));
    const Distribution q = RandomQ(random, p.row);
    const double u = EdgyUniform(random);
    DraftedToken drafted;
    std::vector<int32_t> q_ids(kMaxTopN);
    std::vector<float> q_weights(kMaxTopN);
    const ProposalNode token{q.ids[0], -1, q};
    PackDraft({&token, 1}, 0, &drafted, q_ids.data(), q_weights.data());

    Residual expected(p.row);
    expected.Subtract(q);
    const int threads = i % 200 == 0 ? 7 : 1;
    OnTeam(threads, [&](HostTeam& team) {
      const TargetRow row{p.weights.data(), vocab, AsShaped(p.row)};
      const ResidualRow residual{row, QOf(drafted, q_ids.data(), q_weights.data()), 1.0 / p.row.total};
      const double mass = SumRow(team, residual, vocab);
      const int drawn = mass > 0 ? SampleIndex(team, residual, vocab, mass, u) : -1;
      if (team.rank() != 0) return;
      EXPECT_EQ(mass, expected.mass());
      EXPECT_EQ(mass > 0, !expected.empty());
      if (mass > 0) {
        EXPECT_EQ(drawn, expected.Sample(u));
      }
      with_tail += mass > 0 && !std::binary_search(q.ids.begin(), q.ids.end(), drawn);
    });
  }
  EXPECT_GT(with_tail, SomeOf(100));
}

TEST(DeviceDraw, RacesAreThoseOfTheSpecification) {
  Generator random(4);
  for (int i = 0; i < SomeOf(1500); ++i) {
    const int vocab = kDrawSizes[Pick(random, std::size(kDrawSizes))];
    const Shaped p = RandomRow(random, vocab, Sampling(1, OneOf(random, {0, 1, 3, 40})));
    const RandomKey key{random(), random() % 5};
    const uint64_t position = random() % 10000;
    const TeamSize size = i % 200 == 0 ? TeamSize(4, 8) : i % 40 == 0 ? 7 : 1;
    const int token = FromTeam<int>(
        size, [&](HostTeam& team) { return RaceRow(team, p.weights.data(), vocab, key, position); });
    EXPECT_EQ(token, Race(p.row, key, position));
  }
}

TEST(DeviceDraw, ADistributionIsTruncatedAsInTheSpecification) {
  Generator random(5);
  for (int i = 0; i < SomeOf(3000); ++i) {
    const int vocab = kDrawSizes[Pick(random, std::size(kDrawSizes))];
    const Shaped p = RandomRow(random, vocab, Sampling(1, OneOf(random, {0, 0, 0, 3, 40, 200})));
    const int top_n = 1 + Pick(random, std::min(vocab - 1, kMaxTopN));
    const Distribution expected = TruncateTopN(p.row, top_n);
    const TeamSize size = i % 300 == 0 ? 32 : i % 300 == 75 ? TeamSize(5, 3) : i % 75 == 0 ? 7 : 1;
    std::vector<int32_t> ids(kMaxTopN);
    std::vector<float> weights(kMaxTopN);
    const int count = FromTeam<int>(size, [&](HostTeam& team) {
      return TruncateTopN(team, p.weights.data(), vocab, top_n, ids.data(), weights.data());
    });
    ids.resize(count);
    weights.resize(count);
    EXPECT_EQ(ids, expected.ids);
    EXPECT_TRUE(SameBits(weights, expected.weights));
  }
}

// Proposals on the device, over the device's own rows, against those on the host. `round_shift` makes the
// device use another round's noise. Returns how many differ.
int DifferentProposals(TeamSize size, int rows, uint64_t seed, uint64_t round_shift) {
  Generator random(seed);
  int different = 0;
  for (int i = 0; i < rows; ++i) {
    const int vocab = kDrawSizes[Pick(random, std::size(kDrawSizes))];
    const SamplingParams params = Sampling(OneOf(random, {0.0, 0.6, 1.0, 1.0, 1.5}),
                                           OneOf(random, {0, 0, 5, 50}), 1, OneOf(random, {0.0, 0.0, 0.05}));
    const Rule rule = OneOf(random, {Rule::kToken, Rule::kToken, Rule::kBlock, Rule::kCoupled});
    const int top_n = 1 + Pick(random, std::min(vocab - 1, kMaxTopN));
    const RandomKey key{random(), random() % 3};
    const uint64_t round_start = random() % 5000;
    const int step = Pick(random, 5);
    std::vector<float> weights = RandomLogits(random, vocab);
    const DeviceRow device = ShapeOnTeam(size, weights, params);
    absl::StatusOr<Controls> controls = Controls::Create(params, 0, vocab);
    const WeightRow row = *controls->Apply({}, weights);

    const ProposeInput input = ToProposeInput(key, rule, round_start, round_start + round_shift, 5, top_n);
    ProposeOutput output;
    std::vector<int32_t> ids(kMaxTopN);
    std::vector<float> q_weights(kMaxTopN);
    OnTeam(size, [&](HostTeam& team) {
      ProposeRow(team, device.weights.data(), vocab, device.shaped, input, step, &output, ids.data(),
                 q_weights.data(), /*head_tokens=*/nullptr);
    });
    Proposal proposed;
    if (!AppendTo(proposed, output, ids.data(), q_weights.data()).ok()) return rows;
    ProposalNode checked = proposed[0];
    EXPECT_TRUE(Prepare(checked.q, checked.token, vocab, /*allow_absent=*/true).ok());
    different +=
        !SameDraft(proposed[0], DraftOnTheHost(row, rule, top_n, key, round_start + step, round_start));
  }
  return different;
}

TEST(DevicePropose, OneThreadDraftsAsTheHostDoes) { EXPECT_EQ(DifferentProposals(1, 4000, 6, 0), 0); }
TEST(DevicePropose, SevenThreadsDraftAsTheHostDoes) { EXPECT_EQ(DifferentProposals(7, 40, 7, 0), 0); }
TEST(DevicePropose, ThirtyTwoThreadsDraftAsTheHostDoes) { EXPECT_EQ(DifferentProposals(32, 12, 8, 0), 0); }
TEST(DevicePropose, GroupsOfThreadsDraftAsTheHostDoes) {
  EXPECT_EQ(DifferentProposals({3, 2}, 40, 10, 0), 0);
  EXPECT_EQ(DifferentProposals({4, 8}, 12, 11, 0), 0);
}
TEST(DevicePropose, TheNoiseOfAnotherRoundIsNoticed) { EXPECT_GT(DifferentProposals(1, 500, 9, 1), 50); }

// The logits are the columns of a head that was cut to every third token.
TEST(DevicePropose, ACutHeadProposesItsTokens) {
  constexpr int kColumns = 40;
  std::vector<float> logits;
  std::vector<int32_t> head_tokens;
  for (int c = 0; c < kColumns; ++c) {
    logits.push_back(static_cast<float>(c % 7));
    head_tokens.push_back(3 * c + 1);
  }
  for (const double temperature : {0.0, 1.0}) {
    SamplingParams params;
    params.temperature = temperature;
    const DeviceRow row = ShapeOnTeam(7, logits, params);
    const auto propose = [&](const int32_t* tokens) {
      ProposeOutput output;
      std::vector<int32_t> ids(kMaxTopN);
      std::vector<float> weights(kMaxTopN);
      OnTeam(7, [&](HostTeam& team) {
        ProposeRow(team, row.weights.data(), kColumns, row.shaped,
                   ToProposeInput({}, Rule::kToken, 5, 5, 1, 20), 0, &output, ids.data(), weights.data(),
                   tokens);
      });
      Proposal proposal;
      EXPECT_TRUE(AppendTo(proposal, output, ids.data(), weights.data()).ok());
      return proposal.at(0);
    };
    const ProposalNode columns = propose(nullptr), tokens = propose(head_tokens.data());
    EXPECT_EQ(tokens.token, 3 * columns.token + 1);
    EXPECT_EQ(tokens.q.weights, columns.q.weights);
    ASSERT_EQ(tokens.q.ids.size(), columns.q.ids.size());
    for (size_t i = 0; i < tokens.q.ids.size(); ++i) EXPECT_EQ(tokens.q.ids[i], 3 * columns.q.ids[i] + 1);
  }
}

TEST(DevicePropose, ARowThatIsNotFiniteIsAnError) {
  const DeviceRow row = ShapeOnTeam(1, {1, std::numeric_limits<float>::quiet_NaN(), 2}, {});
  ProposeOutput output;
  output.token = -5;
  OnTeam(1, [&](HostTeam& team) {
    ProposeRow(team, row.weights.data(), 3, row.shaped, ToProposeInput({}, Rule::kToken, 0, 0, 1, 2), 0,
               &output, nullptr, nullptr, nullptr);
  });
  EXPECT_EQ(output.token, 0);  // a token that can be embedded
  Proposal proposal;
  EXPECT_EQ(AppendTo(proposal, output, nullptr, nullptr).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace outrider::cuda
