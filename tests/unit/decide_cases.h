// Hard cases and their results in common/spec, for tests of the device's decisions: of their source on the
// host, and of their kernels on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/cuda/decide_convert.h"
#include "common/spec/distribution.h"
#include "common/spec/verify.h"
#include "common/spec/weights.h"
#include "decide_testing.h"

namespace outrider::cuda {

inline SamplingParams RandomControls(Generator& random, int vocab) {
  return Sampling(OneOf(random, {0.0, 1e-40, 0.05, 0.7, 1.0, 1.0, 3.0, 100.0}),
                  OneOf(random, {0, 0, 0, 1, 2, 5, 17, 50, 300, 2000, vocab, vocab + 1}),
                  OneOf(random, {1.0, 1.0, 0.95, 0.5, 0.1, 1e-9, 0.999999, 1 - 1e-12}),
                  OneOf(random, {0.0, 0.0, 0.01, 0.3, 1.0}));
}

// The sum of the `weights` of the tokens that `row` keeps.
inline long double MassKept(std::span<const float> weights, std::span<const float> row) {
  long double mass = 0;
  for (size_t i = 0; i < row.size(); ++i) mass += row[i] > 0 ? weights[i] : 0;
  return mass;
}

// Two rows may differ only in where top_p cuts, and there only within the stated bound.
inline void ExpectWithinBound(const std::vector<float>& logits, SamplingParams params,
                              std::span<const float> device, std::span<const float> reference) {
  const double top_p = std::exchange(params.top_p, 1);
  ASSERT_LT(top_p, 1);
  params.min_p = 0;
  std::vector<float> weights = logits;
  absl::StatusOr<Controls> controls = Controls::Create(params, 0, static_cast<int>(logits.size()));
  const absl::StatusOr<WeightRow> row = controls->Apply({}, weights);
  ASSERT_TRUE(row.ok());
  const long double n = static_cast<long double>(logits.size());
  const long double bound = n * 0x1p-44L + 4 * n * 0x1p-53L * row->total;
  const long double less = std::min(MassKept(weights, device), MassKept(weights, reference));
  EXPECT_NEAR(less, static_cast<long double>(top_p) * row->total, bound);
}

// `device` is the device's row for the logits; `tolerance`: how far its entropy may be off. Returns whether
// top_p cut at another token.
inline bool ExpectShapedAsControlsDo(const DeviceRow& device, const std::vector<float>& logits,
                                     const SamplingParams& params, double tolerance = 0) {
  std::vector<float> reference = logits;
  absl::StatusOr<Controls> controls = Controls::Create(params, 0, static_cast<int>(logits.size()));
  const absl::StatusOr<WeightRow> row = controls->Apply({}, reference);
  EXPECT_EQ(device.shaped.finite != 0, row.ok());
  if (!row.ok() || device.shaped.finite == 0) return false;
  EXPECT_EQ(device.shaped.point_mass, row->point_mass);
  if (!SameBits(device.weights, reference)) {
    ExpectWithinBound(logits, params, device.weights, reference);
    return true;
  }
  EXPECT_EQ(device.shaped.total, row->total);
  EXPECT_NEAR(device.shaped.entropy, Entropy(*row), tolerance);
  return false;
}

inline ProposalNode DraftOnTheHost(const WeightRow& row, Rule rule, int top_n, const RandomKey& key,
                                   uint64_t position, uint64_t round_start) {
  PhiloxNoise noise(key, round_start);
  return Propose(rule, row, top_n, position, noise);
}

inline bool SameDraft(const ProposalNode& a, const ProposalNode& b) {
  return a.token == b.token && a.q.form == b.q.form && a.q.ids == b.q.ids &&
         SameBits(a.q.weights, b.q.weights) &&
         (a.q.form == Distribution::Form::kAbsent || a.q.total == b.q.total);
}

// A draft and the target's logits for it.
struct Case {
  int vocab = 0;
  Rule rule = Rule::kToken;
  SamplingParams sampling;
  RandomKey key;
  uint64_t round_start = 0;
  Proposal draft;
  std::vector<std::vector<float>> logits;  // draft.size() + 1 rows
};

// Drafts a token with a draft model that is more or less like the target.
inline void AddRandomNode(Generator& random, const std::vector<float>& target, Case& c) {
  const uint64_t position = c.round_start + c.draft.size();
  std::vector<float> logits = target;
  const float noise = OneOf(random, {0.0f, 0.3f, 2.0f});
  for (float& logit : logits) logit += std::normal_distribution<float>(0, 1)(random) * noise;
  SamplingParams sampling = c.sampling;
  if (Pick(random, 3) == 0) sampling.temperature = OneOf(random, {0.0, 1.0});
  absl::StatusOr<Controls> controls = Controls::Create(sampling, 0, c.vocab);
  const WeightRow row = *controls->Apply({}, logits);
  if (c.rule == Rule::kCoupled) return AppendToChain(Race(row, c.key, position), {}, c.draft);
  Distribution q;
  if (Pick(random, 5) == 0) {  // as an n-gram drafter does
    const TokenId token = Pick(random, 2) == 0 ? Pick(random, c.vocab) : FindMax(target).index;
    q.form = Distribution::Form::kPointMass;
    q.ids = {token};
    q.total = 1;
    return AppendToChain(token, std::move(q), c.draft);
  }
  q = TruncateTopN(row, 1 + Pick(random, std::min(c.vocab - 1, kMaxTopN)));
  const TokenId token = DraftSample(q, c.key, position, c.round_start);
  AppendToChain(token, std::move(q), c.draft);
}

inline Case RandomCase(Generator& random, int vocab) {
  Case c;
  c.vocab = vocab;
  c.rule = OneOf(random, {Rule::kToken, Rule::kToken, Rule::kCoupled});
  c.sampling = Sampling(OneOf(random, {0.0, 0.5, 1.0, 1.0, 2.0}), OneOf(random, {0, 0, 0, 2, 30}),
                        OneOf(random, {1.0, 1.0, 0.9}), OneOf(random, {0.0, 0.0, 0.02}));
  c.key = {random(), random() % 4};
  c.round_start = random() % 100000;
  const int drafted = Pick(random, 12) == 0 ? kMaxDraftTokens : Pick(random, 7);
  for (int i = 0; i <= drafted; ++i) {
    c.logits.push_back(RandomLogits(random, c.vocab));
    if (i < drafted) AddRandomNode(random, c.logits[i], c);
  }
  return c;
}

inline absl::StatusOr<Verdict> OnTheHost(const Case& c) {
  std::vector<std::vector<float>> rows = c.logits;
  absl::StatusOr<Controls> controls = Controls::Create(c.sampling, 0, c.vocab);
  return Verify(
      {.rule = c.rule}, c.draft, [&](int i) { return controls->Apply({}, rows[i]); }, c.round_start, c.key);
}

// `tolerance`: how far the sums of logarithms may be apart.
inline bool Same(const Verdict& a, const Verdict& b, double tolerance = 0) {
  const auto near = [&](double x, double y) {
    return x == y || std::abs(x - y) <= tolerance * (1 + std::abs(y));
  };
  return a.path == b.path && a.judged == b.judged && a.token == b.token && a.kind == b.kind &&
         a.empty_residual == b.empty_residual && a.expected_accepted == b.expected_accepted &&
         a.expected_variance == b.expected_variance && near(a.surprisal, b.surprisal) &&
         near(a.entropy, b.entropy) &&
         std::equal(a.log_probabilities.begin(), a.log_probabilities.end(), b.log_probabilities.begin(),
                    b.log_probabilities.end(), near);
}

inline std::string Text(const Verdict& v) {
  return ::testing::PrintToString(std::make_tuple(v.path, v.judged, v.token, static_cast<int>(v.kind),
                                                  v.empty_residual, v.expected_accepted, v.expected_variance,
                                                  v.surprisal, v.entropy, v.log_probabilities));
}

}  // namespace outrider::cuda
