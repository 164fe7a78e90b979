// Compares the kernels that decide with common/spec, bit for bit. Only logarithms, and sums of them, are the
// GPU's own.
#include "common/engine/cuda/decide_kernels.h"

#include "gpu_testing.h"
#include "tests/unit/decide_cases.h"

namespace outrider::cuda {
namespace {

using outrider::testing::DeviceArray;
using outrider::testing::Expect;
using outrider::testing::kDefaultStream;

constexpr double kLogarithms = 1e-12;
constexpr int kSizes[] = {1, 2, 17, 256, 257, 1000, 1025, 5003, 32000, 128256};
// With few rows each has a cluster of blocks, with many a block or two.
constexpr int kRows[] = {48, 6};

// All pairs of one of kSizes and one of the counts.
std::vector<std::pair<int, int>> SizesAnd(std::span<const int> counts) {
  std::vector<std::pair<int, int>> both;
  for (const int size : kSizes) {
    for (const int count : counts) both.emplace_back(size, count);
  }
  return both;
}

using Rows = std::vector<std::vector<float>>;

std::vector<float> Join(const Rows& rows) {
  std::vector<float> joined;
  for (const std::vector<float>& row : rows) joined.insert(joined.end(), row.begin(), row.end());
  return joined;
}

// Rows after the controls, on the GPU.
struct Shaped {
  DeviceArray<float> weights;
  DeviceArray<ShapedRow> rows;
};

Shaped Shape(const Rows& logits, const std::vector<ShapeParams>& params) {
  Shaped shaped{DeviceArray<float>(Join(logits)),
                DeviceArray<ShapedRow>(std::vector<ShapedRow>(logits.size()))};
  const DeviceArray<ShapeParams> wanted(params);
  Expect(LaunchShape(shaped.weights.data(), static_cast<int>(logits[0].size()),
                     static_cast<int>(logits.size()), wanted.data(), shaped.rows.data(), kDefaultStream));
  Expect(cudaDeviceSynchronize());
  return shaped;
}

TEST(DecideKernels, RowsAreShapedAsControlsDo) {
  Generator random(1);
  for (const auto& [vocab, row_count] : SizesAnd(kRows)) {
    Rows logits;
    std::vector<SamplingParams> sampling;
    std::vector<ShapeParams> params;
    for (int r = 0; r < row_count; ++r) {
      logits.push_back(RandomLogits(random, vocab));
      sampling.push_back(RandomControls(random, vocab));
      params.push_back(ToShapeParams(sampling.back(), /*entropy=*/true));
    }
    logits[4][static_cast<size_t>(vocab / 2)] = std::numeric_limits<float>::quiet_NaN();
    params[5].active = 0;
    const Shaped shaped = Shape(logits, params);
    const std::vector<float> weights = shaped.weights.Read();
    const std::vector<ShapedRow> rows = shaped.rows.Read();
    int elsewhere = 0;
    for (int r = 0; r < row_count; ++r) {
      SCOPED_TRACE(::testing::Message()
                   << "vocab " << vocab << ", row " << r << ", temperature " << sampling[r].temperature
                   << ", top_k " << sampling[r].top_k << ", top_p " << sampling[r].top_p << ", min_p "
                   << sampling[r].min_p);
      const auto begin = weights.begin() + int64_t{r} * vocab;
      const DeviceRow device{{begin, begin + vocab}, rows[r]};
      if (params[r].active == 0) {
        EXPECT_TRUE(SameBits(device.weights, logits[r]));
        continue;
      }
      elsewhere += ExpectShapedAsControlsDo(device, logits[r], sampling[r], kLogarithms);
    }
    EXPECT_LE(elsewhere, 2);
  }
}

TEST(DecideKernels, TokensAreProposedAsTheHostDoes) {
  Generator random(2);
  for (const auto& [vocab, row_count] : SizesAnd(kRows)) {
    if (vocab == 1) continue;  // nothing can be truncated
    for (const int step : {0, 3}) {
      Rows logits;
      std::vector<ShapeParams> params;
      std::vector<ProposeInput> inputs;
      std::vector<ProposalNode> expected;
      for (int r = 0; r < row_count; ++r) {
        logits.push_back(RandomLogits(random, vocab));
        const SamplingParams sampling = Sampling(OneOf(random, {0.0, 0.6, 1.0, 1.5}),
                                                 OneOf(random, {0, 0, 5, 50}), 1, OneOf(random, {0.0, 0.05}));
        const Rule rule = OneOf(random, {Rule::kToken, Rule::kToken, Rule::kBlock, Rule::kCoupled});
        const int top_n = 1 + Pick(random, std::min(vocab - 1, kMaxTopN));
        const RandomKey key{random(), random() % 3};
        const uint64_t round_start = random() % 5000;
        params.push_back(ToShapeParams(sampling, /*entropy=*/false));
        inputs.push_back(ToProposeInput(key, rule, round_start, round_start, /*steps=*/4, top_n));
        std::vector<float> weights = logits.back();
        absl::StatusOr<Controls> controls = Controls::Create(sampling, 0, vocab);
        const WeightRow row = *controls->Apply({}, weights);
        expected.push_back(
            DraftOnTheHost(row, rule, top_n, key, round_start + static_cast<uint64_t>(step), round_start));
      }
      inputs[5].steps = step;  // its proposal is done
      const Shaped shaped = Shape(logits, params);
      const DeviceArray<ProposeInput> wanted(inputs);
      const DeviceArray<ProposeOutput> outputs(
          std::vector<ProposeOutput>(row_count, {1, -7, QForm::kAbsent, 0, 1}));
      const DeviceArray<int32_t> ids(logits.size() * kMaxTopN), next(std::vector<int32_t>(row_count, -7));
      const DeviceArray<float> q_weights(logits.size() * kMaxTopN);
      Expect(LaunchPropose(shaped.weights.data(), vocab, row_count, shaped.rows.data(), wanted.data(), step,
                           outputs.data(), ids.data(), q_weights.data(), next.data(),
                           /*head_tokens=*/nullptr, kDefaultStream));
      const std::vector<ProposeOutput> found = outputs.Read();
      const std::vector<int32_t> found_ids = ids.Read(), found_next = next.Read();
      const std::vector<float> found_weights = q_weights.Read();
      for (int r = 0; r < row_count; ++r) {
        EXPECT_EQ(found_next[r], found[r].token);
        if (r == 5) {
          EXPECT_EQ(found[r].token, -7);
          continue;
        }
        Proposal proposal;
        ASSERT_TRUE(AppendTo(proposal, found[r], &found_ids[size_t{kMaxTopN} * r],
                             &found_weights[size_t{kMaxTopN} * r])
                        .ok());
        EXPECT_TRUE(SameDraft(proposal[0], expected[r])) << "vocab " << vocab << ", row " << r;
      }
    }
  }
}

// The drafts of several sequences, which share arrays.
struct VerifyBatch {
  explicit VerifyBatch(const std::vector<Case>& cases) {
    for (const Case& c : cases) {
      const int count = static_cast<int>(c.draft.size());
      inputs.push_back(ToVerifyInput(c.key, c.rule, c.round_start, static_cast<int>(logits.size()),
                                     static_cast<int>(drafted.size()), count));
      drafted.resize(drafted.size() + c.draft.size());
      q_ids.resize(q_ids.size() + c.draft.size() * kMaxTopN);
      q_weights.resize(q_ids.size());
      entries = PackDraft(c.draft, entries, drafted.data() + inputs.back().first_drafted, q_ids.data(),
                          q_weights.data());
      for (const std::vector<float>& row : c.logits) {
        logits.push_back(row);
        params.push_back(ToShapeParams(c.sampling, /*entropy=*/true));
      }
    }
  }

  Rows logits;
  std::vector<ShapeParams> params;
  std::vector<VerifyInput> inputs;
  std::vector<DraftedToken> drafted;
  std::vector<int32_t> q_ids;
  std::vector<float> q_weights;
  int entries = 0;
};

TEST(DecideKernels, DraftsAreJudgedAsTheHostDoes) {
  Generator random(3);
  int kinds[3] = {};
  constexpr int kSequences[] = {24, 1, 1, 1, 1, 1, 1};
  for (const auto& [vocab, sequences] : SizesAnd(kSequences)) {
    if (vocab == 1) continue;
    std::vector<Case> cases;
    for (int s = 0; s < sequences; ++s) cases.push_back(RandomCase(random, vocab));
    VerifyBatch batch(cases);
    if (sequences > 3) batch.inputs[3].active = 0;
    const Shaped shaped = Shape(batch.logits, batch.params);
    const DeviceArray<VerifyInput> inputs(batch.inputs);
    const DeviceArray<DraftedToken> drafted(batch.drafted);
    const DeviceArray<int32_t> q_ids(batch.q_ids), races(batch.logits.size());
    const DeviceArray<float> q_weights(batch.q_weights);
    const DeviceArray<VerifyOutput> outputs(std::vector<VerifyOutput>(cases.size()));
    Expect(LaunchVerify(shaped.weights.data(), vocab, static_cast<int>(cases.size()), kMaxDraftTokens,
                        shaped.rows.data(), inputs.data(), drafted.data(), q_ids.data(), q_weights.data(),
                        races.data(), outputs.data(), kDefaultStream));
    const std::vector<VerifyOutput> found = outputs.Read();
    for (size_t s = 0; s < cases.size(); ++s) {
      if (batch.inputs[s].active == 0) {
        EXPECT_EQ(found[s].finite, 0);  // unchanged
        continue;
      }
      const absl::StatusOr<Verdict> expected = OnTheHost(cases[s]);
      const absl::StatusOr<Verdict> verdict = ToVerdict(found[s], static_cast<int>(cases[s].draft.size()));
      ASSERT_TRUE(expected.ok() && verdict.ok()) << "vocab " << vocab << ", sequence " << s;
      EXPECT_TRUE(Same(*verdict, *expected, kLogarithms)) << "vocab " << vocab << ", sequence " << s << "\n"
                                                          << Text(*verdict) << "\n"
                                                          << Text(*expected);
      ++kinds[static_cast<int>(expected->kind)];
    }
  }
  for (const int kind : kinds) EXPECT_GT(kind, 0);
}

}  // namespace
}  // namespace outrider::cuda
