// Whole models on the GPU: against the CPU, alone and in batches; and the GPU's decisions against the host's,
// which come from the same logits.
#include <filesystem>
#include <fstream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "bench/temporary_folder.h"
#include "common/engine/self_test.h"
#include "gpu_model.h"
#include "tests/unit/device_worker_testing.h"

namespace outrider::testing {
namespace {

class CudaModelOf : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaModelOf, EachFamilyComputesWhatTheCpuDoes) {
  const DecoderConfig llama_1b = {.heads = 32, .kv_heads = 8, .head_dim = 64, .rope_theta = 500000};
  DecoderConfig llama_3b = llama_1b, qwen2 = llama_1b, qwen3 = llama_1b, mistral = llama_1b;
  llama_3b.heads = 24;
  llama_3b.head_dim = qwen3.head_dim = mistral.head_dim = 128;
  qwen2.heads = 14;
  qwen2.kv_heads = 2;
  qwen2.qkv_bias = qwen3.qk_norm = true;
  mistral.sliding_window = 4096;
  ThreadPool threads(1);
  for (const DecoderConfig& spec : {llama_1b, llama_3b, qwen2, qwen3, mistral}) {
    RunnerOptions options;
    options.device = "cuda:0";
    options.dtype = GetParam();
    const absl::Status status = SelfTest(Gpu(/*decides=*/true), spec, options, threads);
    EXPECT_TRUE(status.ok()) << status << " (" << spec.heads << " heads of " << spec.head_dim << ")";
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaModelOf, ::testing::Values("bfloat16", "fp8"),
                         [](const auto& info) { return std::string(info.param); });

// The plug-in itself, as a program loads it.
TEST(CudaModel, IsWhatThePluginMakes) {
  const auto plugin = Runner::Load(OnGpu(Options(""), "bfloat16"));
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  const auto linked = Runner::Load(OnGpu(Options(""), "bfloat16"), Gpu(/*decides=*/true)).value();
  const std::vector<TokenId> tokens = SomeTokens(20, 256);
  EXPECT_EQ((*plugin)->kernel_name(), "cuda");
  EXPECT_EQ(AllLogits(**plugin, tokens), AllLogits(*linked, tokens));
}

// Common steps are captured at load, others when they come again. So the second and third runs use a graph.
TEST(CudaModel, CapturesItsSteps) {
  const auto runner = Runner::Load(OnGpu(Options(""), "bfloat16"), Gpu(/*decides=*/true)).value();
  const GraphCaptures at_first = runner->graph_captures();
  EXPECT_TRUE(at_first.failure.ok()) << at_first.failure;
  EXPECT_GT(at_first.count, 0);
  const std::vector<TokenId> tokens = SomeTokens(20, 256);
  Logits direct;
  for (int step = 1; step <= 3; ++step) {
    const Logits logits = AllLogits(*runner, tokens);
    if (step == 1) direct = logits;
    EXPECT_EQ(logits, direct) << step;
    const GraphCaptures captures = runner->graph_captures();
    EXPECT_TRUE(captures.failure.ok()) << captures.failure;
    EXPECT_EQ(captures.count, at_first.count + (step > 1 ? 1 : 0)) << step;
  }
}

// The bytes follow from the definition of Model::weight_bytes. The head of a tied model is the embedding in
// bfloat16, and a copy of it in fp8.
TEST(CudaModel, ItsWeightBytesAreWhatAStepReads) {
  DecoderConfig spec = {.vocab_size = 256,
                        .hidden_size = 64,
                        .intermediate_size = 96,
                        .layers = 2,
                        .heads = 2,
                        .kv_heads = 1,
                        .head_dim = 64,
                        .max_position_embeddings = 512};
  const size_t hidden = 64, inner = 96, vocab = 256, queries = 2 * 64, qkv = queries + 2 * 64;
  const size_t numbers = 2 * (qkv * hidden + hidden * queries + 3 * inner * hidden) + vocab * hidden;
  const size_t rows = 2 * (qkv + hidden + 2 * inner + hidden) + vocab;  // each with a scale in fp8
  const size_t norms = 4 * 5 * hidden;
  MadeUpWeights weights;
  for (const bool tied : {false, true}) {
    spec.tie_word_embeddings = tied;
    const auto bytes = [&](const char* dtype) {
      return cuda::CudaModel::Create(spec, weights, /*device=*/0, OnGpu(Options(""), dtype))
          .value()
          ->weight_bytes();
    };
    EXPECT_EQ(bytes("bfloat16"), 2 * numbers + norms) << "tied: " << tied;
    EXPECT_EQ(bytes("fp8"), numbers + 4 * rows + norms) << "tied: " << tied;
  }
}

TEST(CudaModel, RefusesHeadsAndNamesTheEngineThatTakesThem) {
  RunnerOptions options = OnGpu(Options(""), "bfloat16");
  options.heads = {"medusa"};
  EXPECT_EQ(
      Runner::Load(options, Gpu()).status(),
      absl::InvalidArgumentError("--heads medusa: needs --device cpu or --engine torch, in one process"));
}

// A prompt in one piece, token by token, and in chunks of few rows and of many, which have algorithms of
// their own.
TEST(CudaModel, LogitsAreTheSameInAnyChunks) {
  for (const char* dtype : {"bfloat16", "fp8"}) {
    const auto runner = Runner::Load(OnGpu(Options(""), dtype), Gpu(/*decides=*/true)).value();
    const std::vector<TokenId> tokens = SomeTokens(120, 256);
    const Logits whole = AllLogits(*runner, tokens);
    for (const int chunk : {1, 7, 64, 65}) EXPECT_EQ(AllLogits(*runner, tokens, chunk), whole) << chunk;
  }
}

// Positions on both sides of a split.
TEST(CudaModel, LogitsAreTheSameBesideOthers) {
  for (const char* dtype : {"bfloat16", "fp8"}) {
    const auto runner = Runner::Load(OnGpu(Options(""), dtype), Gpu(/*decides=*/true)).value();
    const std::vector<TokenId> tokens = SomeTokens(300, 256), others = SomeTokens(40, 256, 2);
    const std::vector<BlockId> blocks = BlocksFor(*runner, 300), other_blocks = BlocksFor(*runner, 40, 32);
    const Logits alone = Append(*runner, tokens, 0, blocks, 100);
    for (const int position : {1, 100, 250, 290}) {
      for (const int rows : {1, 5}) {
        const absl::Span<const TokenId> part =
            absl::MakeConstSpan(tokens).subspan(static_cast<size_t>(position), static_cast<size_t>(rows));
        const SequenceRows batch[] = {{others, 0, other_blocks, 2}, {part, position, blocks, rows}};
        const absl::StatusOr<LogitsView> logits = runner->Forward(batch);
        ASSERT_TRUE(logits.ok()) << logits.status();
        for (int r = 0; r < rows; ++r) {
          EXPECT_EQ(RowOf(*logits, 2 + r), alone[static_cast<size_t>(position + r)]) << position + r;
        }
      }
    }
  }
}

class CudaDecisions : public ::testing::TestWithParam<std::tuple<const char*, Setting>> {};

TEST_P(CudaDecisions, AreThoseOfTheHost) {
  const auto& [dtype, setting] = GetParam();
  const auto start = [&](bool device, std::unique_ptr<Sampler> sampler) {
    return StartDeviceWorker(std::move(sampler), [&](const RunnerOptions& options) {
      return Runner::Load(OnGpu(options, dtype), Gpu(/*decides=*/device));
    });
  };
  EXPECT_GT(ExpectWhatTheHostSays(setting, start).accepted, 0);
}

INSTANTIATE_TEST_SUITE_P(Settings, CudaDecisions,
                         ::testing::Combine(::testing::Values("bfloat16", "fp8"),
                                            ::testing::ValuesIn(Settings())),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_", std::get<1>(info.param).name);
                         });

// The head has most tokens: more than a draft sends of q.
TEST(CudaModel, ACutHeadProposesAsItsHostWould) {
  constexpr int kListed = 192;
  const TemporaryFolder folder;
  const std::string model = folder.path() + "/model";
  std::filesystem::copy(DataDir("gqa4-llama3-rope"), model);
  std::ofstream list(model + "/frequent_tokens.json");
  list << "{\"tokens\": [0";
  for (int i = 1; i < kListed; ++i) list << ", " << i / 3 * 4 + i % 3;
  list << "]}" << std::flush;
  const auto load = [&](RunnerOptions options, bool decides) {
    options = OnGpu(std::move(options), "bfloat16");
    options.model_dir = model;
    options.frequent_tokens = kListed;
    return Runner::Load(options, Gpu(decides));
  };
  const auto params = Params({.name = ""}, /*seed=*/1);
  const auto runner = load(Options(""), /*decides=*/true).value();
  EXPECT_TRUE(runner->CanRun({.params = params.get(), .round_start = 0, .work = ProposeTask{1}}));
  EXPECT_FALSE(runner->CanRun({.params = params.get(), .round_start = 0, .work = VerifyTask{}}));
  for (const Setting& setting : Settings()) {
    const std::string name = setting.name;
    if (name != "Greedy" && name != "TopP" && name != "Coupled") continue;
    SCOPED_TRACE(setting.name);
    const auto start = [&](bool device, std::unique_ptr<Sampler> sampler) {
      return StartDeviceWorker(std::move(sampler),
                               [&](const RunnerOptions& options) { return load(options, device); });
    };
    EXPECT_GT(ExpectWhatTheHostSays(setting, start).accepted, 0);
  }
}

}  // namespace
}  // namespace outrider::testing
