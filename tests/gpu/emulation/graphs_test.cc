// Tests that only an emulated GPU allows: which graphs exist, what happens if one cannot be made, and how
// memory is used.
#include <gtest/gtest.h>

#include <random>

#include "common/engine/cuda/layer_kernels.h"
#include "common/engine/self_test.h"
#include "emulated_model.h"
#include "tests/gpu/gpu_testing.h"
#include "tests/unit/layer_testing.h"
#include "work.h"

namespace outrider::testing {
namespace {

// A graph that was captured for one step serves others of its shape: with other tokens, lengths and blocks.
TEST(EmulatedGraphs, ServeStepsThatTheyWereNotCapturedFor) {
  const std::unique_ptr<Runner> captured = LoadOnGpu(ModelOnGpu());
  emulation::AllowGraphs(false);
  const std::unique_ptr<Runner> direct = LoadOnGpu(ModelOnGpu());
  emulation::AllowGraphs(true);
  Steps with(*captured), without(*direct);
  const emulation::GraphCounts before = emulation::Graphs();
  std::mt19937 random;
  constexpr int kSteps = 30;
  for (int i = 0; i < 2 * kSteps; ++i) {
    if (i % kSteps == 0) random.seed(1);  // all shapes once more, now with graphs
    const int sequences = 1 + static_cast<int>(random() % 5), rows = 1 + static_cast<int>(random() % 5);
    const int length = rows + static_cast<int>(random() % 120), draft_tokens = static_cast<int>(random() % 4);
    SCOPED_TRACE(::testing::Message() << sequences << " sequences of " << length << ", " << rows << " rows, "
                                      << draft_tokens << " drafted");
    ASSERT_EQ(with.Run(sequences, rows, length, draft_tokens),
              without.Run(sequences, rows, length, draft_tokens));
  }
  const emulation::GraphCounts after = emulation::Graphs();
  EXPECT_GE(after.launched - before.launched, kSteps);
  EXPECT_LT(after.made - before.made, after.launched - before.launched);
}

TEST(EmulatedGraphs, OneCopyUploadsThePlansOfAllPasses) {
  const std::unique_ptr<Runner> runner = LoadOnGpu(ModelOnGpu());
  Steps steps(*runner);
  for (const int draft_tokens : {1, 8}) {
    const int copies = emulation::CopiesToDevice(), launched = emulation::Graphs().launched;
    steps.Run(/*sequences=*/1, /*rows=*/1, /*length=*/1, draft_tokens);
    EXPECT_EQ(emulation::Graphs().launched - launched, 1);
    EXPECT_EQ(emulation::CopiesToDevice() - copies, 1) << draft_tokens << " drafted";
  }
}

// A product writes whole tiles of rows, including those of idle tasks.
TEST(EmulatedGraphs, DraftPassesLeaveTheLogitsOfTheHostAlone) {
  const std::unique_ptr<Runner> runner = LoadOnGpu(ModelOnGpu());
  const auto params = Params({.name = ""}, /*seed=*/1);
  const int vocab = runner->config().decoder.vocab_size;
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::vector<BlockId>> blocks;
  for (int s = 0; s < 5; ++s) {
    tokens.push_back(SomeTokens(6, vocab, static_cast<uint32_t>(s + 1)));
    blocks.push_back({s});
  }
  for (const size_t drafting : {1, 3}) {
    std::vector<DeviceTask> tasks(drafting);
    std::vector<SequenceRows> batch, alone;
    for (size_t s = 0; s < tokens.size(); ++s) {
      if (s < drafting) tasks[s] = {.params = params.get(), .round_start = 6, .work = ProposeTask{3}};
      batch.push_back({tokens[s], 0, blocks[s], 1, s < drafting ? &tasks[s] : nullptr});
      if (s >= drafting) alone.push_back(batch.back());
    }
    ASSERT_TRUE(runner->Forward(batch).ok());
    const absl::StatusOr<LogitsView> found = runner->Forward(batch);  // by a graph
    ASSERT_TRUE(found.ok()) << found.status();
    Logits beside;
    for (int r = 0; r < found->rows; ++r) beside.push_back(RowOf(*found, r));
    ASSERT_EQ(beside.size(), alone.size());
    const absl::StatusOr<LogitsView> expected = runner->Forward(alone);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (size_t r = 0; r < beside.size(); ++r) {
      EXPECT_EQ(beside[r], RowOf(*expected, static_cast<int>(r))) << drafting << " draft, row " << r;
    }
  }
}

// CUDA keeps the error of a call until it is read, and the next launch reads it.
TEST(EmulatedGraphs, WhereNoneCanBeMadeStepsAreLaunchedDirectly) {
  const std::unique_ptr<Runner> runner = LoadOnGpu(ModelOnGpu());
  Steps steps(*runner);
  const auto of_three = [&] {
    return steps.Run(/*sequences=*/3, /*rows=*/4, /*length=*/4, /*draft_tokens=*/0);
  };
  const std::vector<float> first = of_three();
  EXPECT_EQ(of_three(), first);  // captured
  EXPECT_TRUE(runner->graph_captures().failure.ok());
  const emulation::GraphCounts before = emulation::Graphs();
  emulation::AllowGraphs(false);
  std::vector<float> of_five[3];
  for (std::vector<float>& found : of_five)
    found = steps.Run(/*sequences=*/5, /*rows=*/4, /*length=*/4, /*draft_tokens=*/2);
  EXPECT_FALSE(of_five[0].empty());
  EXPECT_EQ(of_five[1], of_five[0]);
  EXPECT_EQ(of_five[2], of_five[0]);
  EXPECT_EQ(emulation::Graphs().launched, before.launched);
  // Existing graphs stay in use.
  EXPECT_EQ(of_three(), first);
  emulation::AllowGraphs(true);
  EXPECT_EQ(emulation::Graphs().launched, before.launched + 1);
  EXPECT_EQ(emulation::Graphs().made, before.made);
  EXPECT_EQ(runner->graph_captures().failure,
            absl::ResourceExhaustedError("CUDA: out of memory while capturing a step"));
}

TEST(EmulatedGraphs, OfOneStreamAreThereOnceAModelIsLoaded) {
  const std::unique_ptr<Runner> runner = LoadOnGpu(ModelOnGpu());
  const emulation::GraphCounts before = emulation::Graphs();
  EXPECT_GT(before.made, 10);
  Steps steps(*runner);
  for (int draft_tokens = 1; draft_tokens <= 8; ++draft_tokens) {
    steps.Run(/*sequences=*/1, /*rows=*/1, /*length=*/1, draft_tokens);
  }
  const emulation::GraphCounts after = emulation::Graphs();
  EXPECT_EQ(after.made, before.made);
  EXPECT_EQ(after.launched, before.launched + 8);
  EXPECT_EQ(after.uploaded, after.made);  // else the first launch would upload it
}

TEST(EmulatedGraphs, AModelHasThoseOfItsRoleOnceItIsLoaded) {
  const auto captures = [](ModelRole role) {
    RunnerOptions options = ModelOnGpu();
    options.role = role;
    return LoadOnGpu(options)->graph_captures().count;
  };
  const int64_t of_draft = captures(ModelRole::kDraft), of_target = captures(ModelRole::kTarget);
  EXPECT_GT(of_draft, 0);
  EXPECT_GT(of_target, 0);
  EXPECT_EQ(of_draft + of_target, captures(ModelRole::kAny));
}

TEST(EmulatedGraphs, GoWithTheirModel) {
  const auto kept = [] { return emulation::Graphs().made - emulation::Graphs().destroyed; };
  const int before = kept();
  {
    const std::unique_ptr<Runner> runner = LoadOnGpu(ModelOnGpu());
    EXPECT_GT(kept(), before);
  }
  EXPECT_EQ(kept(), before);
}

// A wider row of AddNorm and the memory of its reductions do not fit into a thread block's shared memory.
TEST(EmulatedMemory, OfAThreadBlockHoldsNoWiderRow) {
  const DecoderConfig spec = {
      .vocab_size = 256, .hidden_size = 12288, .intermediate_size = 96, .head_dim = 64};
  MadeUpWeights weights;
  EXPECT_EQ(
      cuda::CudaModel::Create(spec, weights, /*device=*/0, ModelOnGpu()).status(),
      absl::InvalidArgumentError(DataDir("gqa4-llama3-rope") +
                                 "/config.json: hidden_size: 12288: must be at most 12272 with --device "
                                 "cuda"));
  cuda::LaunchAddNorm({}, nullptr, nullptr, 1e-5f, {}, /*rows=*/0, spec.hidden_size, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  cuda::LaunchAddNorm({}, nullptr, nullptr, 1e-5f, {}, /*rows=*/0, cuda::kMaxNormed, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(EmulatedMemory, ThePoolLeavesRoomForGraphs) {
  RunnerOptions options = ModelOnGpu();
  options.kv_blocks = 0;
  options.kv_memory_fraction = 1;
  options.max_sequences = 1 << 20;
  const std::unique_ptr<Runner> runner = LoadOnGpu(options);
  size_t free_bytes = 0, all_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &all_bytes), cudaSuccess);
  EXPECT_GT(runner->kv_blocks(), 1000);
  // The common graphs are made already; at most 128 are kept.
  EXPECT_GT(free_bytes, 30 * emulation::kGraphBytes);
  EXPECT_LT(free_bytes, 128 * emulation::kGraphBytes);
}

}  // namespace
}  // namespace outrider::testing
