// What Runner refuses, and its properties.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "bench/temporary_folder.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/memory.h"
#include "tests/unit/changed_model.h"
#include "tests/unit/engine_helpers.h"

namespace outrider::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kModel[] = "gqa3-sharded";

std::string LoadError(const RunnerOptions& options) {
  return std::string(Runner::Load(options).status().message());
}

TEST(RunnerLoad, RefusesBadOptionsByTheirFlag) {
  const auto error = [](auto&& change) {
    RunnerOptions options = Options(kModel);
    change(options);
    EXPECT_EQ(Runner::Load(options).status().code(), absl::StatusCode::kInvalidArgument);
    return LoadError(options);
  };
  EXPECT_THAT(error([](auto& o) { o.device = "cuda:0"; }), AllOf(HasSubstr("--device"), HasSubstr("cuda:0")));
  EXPECT_THAT(error([](auto& o) { o.dtype = "fp8"; }), AllOf(HasSubstr("--dtype"), HasSubstr("fp8")));
  EXPECT_THAT(error([](auto& o) { o.threads = -1; }), HasSubstr("--threads -1"));
  EXPECT_THAT(error([](auto& o) { o.kv_blocks = -1; }), HasSubstr("--kv-blocks -1"));
  EXPECT_THAT(error([](auto& o) { o.kv_memory_fraction = 0; }), HasSubstr("--kv-memory-fraction 0"));
  EXPECT_THAT(error([](auto& o) { o.block_size = 0; }), HasSubstr("--block-size 0"));
  EXPECT_THAT(error([](auto& o) { o.max_batch_rows = 0; }), HasSubstr("--max-batch-tokens 0"));
  EXPECT_THAT(error([](auto& o) { o.matmul_algorithms = "f"; }),
              HasSubstr("--matmul-algorithms f: needs --device cuda:N and --engine native"));
  EXPECT_THAT(error([](auto& o) { o.kernels = "mmx"; }), HasSubstr("mmx"));
}

TEST(RunnerLoad, NamesTheDevicesAndDtypesThatThereAre) {
  RunnerOptions options = Options(kModel);
  for (const char* device : {"gpu", "cuda", "cuda:", "cuda:-1", "cuda:64", "cuda:0x"}) {
    options.device = device;
    EXPECT_THAT(LoadError(options), AllOf(HasSubstr(absl::StrCat("--device ", device, ": ")),
                                          HasSubstr("must be cpu or cuda:N with N from 0 to 63")));
  }
  options.device = "cuda:0";
  EXPECT_EQ(LoadError(options), "--dtype float32: must be one of auto, bfloat16, fp8 with --device cuda:0");
  options.device = "cpu";
  options.dtype = "fp8";
  EXPECT_EQ(LoadError(options),
            "--dtype fp8: must be one of auto, float32, bfloat16, int8 with --device cpu");
}

TEST(RunnerLoad, SaysHowToBuildThePluginThatIsNotBesideTheProgram) {
  RunnerOptions options = Options(kModel);
  options.device = "cuda:3";
  options.dtype = "auto";
  EXPECT_EQ(Runner::Load(options).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(LoadError(options),
              AllOf(HasSubstr("--device cuda:3: this build has no CUDA"), HasSubstr("make build CUDA=1")));
}

// If weights were read from the files in place, this would end the process with SIGBUS.
TEST(RunnerLoad, FilesThatShrinkAfterTheLoadChangeNothing) {
  const TemporaryFolder folder;
  std::filesystem::copy(Options(kModel).model_dir, folder.path());
  RunnerOptions options = Options(kModel);
  options.model_dir = folder.path();
  auto runner = Runner::Load(options);
  ASSERT_TRUE(runner.ok()) << runner.status();
  const std::vector<TokenId> prompt = {1, 2, 3};
  const Logits before = AllLogits(**runner, prompt);
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    std::filesystem::resize_file(file.path(), 0);
  }
  EXPECT_EQ(AllLogits(**runner, prompt), before);
}

TEST(RunnerLoad, SizesThePoolByTheFreeMemoryButNoLargerThanCanBeUsed) {
  RunnerOptions options = Options(kModel);
  options.kv_blocks = 0;
  options.max_sequences = 3;
  auto runner = Runner::Load(options);
  ASSERT_TRUE(runner.ok()) << runner.status();
  const int longest = (*runner)->config().decoder.max_position_embeddings;
  EXPECT_EQ((*runner)->kv_blocks(), 3 * ((longest + options.block_size - 1) / options.block_size));

  options.max_sequences = 1 << 24;
  options.kv_memory_fraction = 1e-4;
  runner = Runner::Load(options);
  ASSERT_TRUE(runner.ok()) << runner.status();
  const size_t bytes = static_cast<size_t>((*runner)->kv_blocks()) * (*runner)->bytes_per_block();
  EXPECT_LT(bytes, AvailableMemory() / 1000);
  EXPECT_GT((*runner)->kv_blocks(), 1);
}

TEST(AvailableMemory, IsWhatACgroupLeavesWithoutPagesOfFiles) {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, const char* text) {
    std::ofstream(folder.path() + "/" + name) << text;
  };
  const auto available = [&] { return AvailableMemory(folder.path(), folder.path()); };
  write("meminfo", "MemTotal: 9000 kB\nMemAvailable: 5000 kB\n");
  EXPECT_EQ(available(), 5000 * 1024) << "no cgroup";
  write("memory.max", "max\n");
  write("memory.current", "100000\n");
  EXPECT_EQ(available(), 5000 * 1024) << "no limit";
  write("memory.max", "120000\n");
  EXPECT_EQ(available(), 20000);
  write("memory.stat", "anon 60000\ninactive_file 30000\n");
  EXPECT_EQ(available(), 50000);
  write("memory.current", "150000\n");
  EXPECT_EQ(available(), 0) << "files are all that could go";
}

TEST(RunnerLoad, LetsOthersSizeThePoolUnlessItsSizeIsGiven) {
  RunnerOptions options = Options(kModel);
  options.kv_blocks = 0;
  options.kv_memory_fraction = 1e-9;
  int calls = 0;
  options.pool_bytes = [&](double free_bytes, size_t block_bytes) {
    ++calls;
    EXPECT_GT(free_bytes, 1e6);
    return 7.5 * static_cast<double>(block_bytes);
  };
  auto runner = Runner::Load(options);
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ((*runner)->kv_blocks(), 7);
  EXPECT_EQ(calls, 1);

  options.kv_blocks = 5;
  runner = Runner::Load(options);
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ((*runner)->kv_blocks(), 5);
  EXPECT_EQ(calls, 1);
}

TEST(RunnerLoad, SaysWhatCannotBeAllocated) {
  RunnerOptions options = Options(kModel);
  options.kv_blocks = std::numeric_limits<int>::max();
  options.block_size = 1 << 20;
  const absl::Status status = Runner::Load(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.message(), HasSubstr("--kv-blocks"));
}

TEST(RunnerLoad, NamesAMissingFile) {
  RunnerOptions options = Options("no-such-model");
  EXPECT_EQ(Runner::Load(options).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(LoadError(options), HasSubstr("no-such-model/config.json"));
}

TEST(RunnerLoad, NamesATensorOfTheWrongShape) {
  const TemporaryFolder folder;
  const std::string& dir = folder.path();
  std::filesystem::copy(DataDir("mha-float32"), dir);
  std::ifstream in(dir + "/config.json");
  std::string config((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  config.replace(config.find("\"intermediate_size\": 96"), 23, "\"intermediate_size\": 98");
  std::ofstream(dir + "/config.json") << config;
  RunnerOptions options = Options("");
  options.model_dir = dir;
  EXPECT_THAT(LoadError(options), AllOf(HasSubstr("model.safetensors"), HasSubstr("mlp.gate_proj.weight"),
                                        HasSubstr("[96, 64], expected [98, 64]")));
}

TEST(RunnerLoad, ReportsProgressUpToOne) {
  std::vector<double> fractions;
  RunnerOptions options = Options(kModel);
  options.progress = [&](double fraction) { fractions.push_back(fraction); };
  ASSERT_NE(LoadOrDie(options), nullptr);
  EXPECT_GT(fractions.size(), 3u);
  EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
  EXPECT_EQ(fractions.back(), 1);
}

TEST(Runner, SaysWhatItIs) {
  RunnerOptions options = Options(kModel);
  options.dtype = "auto";
  options.threads = 2;
  const auto runner = LoadOrDie(options);
  EXPECT_EQ(runner->dtype(), BestKernels().rounds_operands ? "bfloat16" : "float32");
  EXPECT_EQ(runner->kernel_name(), BestKernels().name);
  EXPECT_EQ(runner->threads(), 2);
  EXPECT_EQ(runner->kv_blocks(), 64);
  EXPECT_EQ(runner->block_size(), 16);
  EXPECT_EQ(runner->max_batch_rows(), 128);
  EXPECT_THAT(runner->config().eos_token_ids, ElementsAre(7, 11));
  const size_t element = runner->dtype() == "bfloat16" ? 2 : 4;
  // Keys and values of 3 layers, 2 KV heads of 16 dimensions, 16 slots.
  EXPECT_EQ(runner->bytes_per_block(), 2 * 3 * 2 * 16 * 16 * element);
  EXPECT_GT(runner->weight_bytes(), 0u);
}

class RunnerForward : public ::testing::Test {
 protected:
  absl::Status Error(const SequenceRows& rows) { return runner_->Forward({&rows, 1}).status(); }

  std::unique_ptr<Runner> runner_ = LoadOrDie(Options(kModel));
  std::vector<TokenId> tokens_ = SomeTokens(20, 256);
  std::vector<BlockId> blocks_ = {0, 1};
};

TEST_F(RunnerForward, RefusesBadBatchesAndChangesNothing) {
  const Logits before = AllLogits(*runner_, tokens_);
  const absl::Span<const TokenId> tail = absl::MakeConstSpan(tokens_).subspan(19);
  std::vector<TokenId> bad_token = {3, 256}, negative_token = {-1};
  std::vector<BlockId> bad_block = {0, 64}, negative_block = {0, -1};
  const std::vector<BlockId> many(64, 0);
  const auto error = [this](const SequenceRows& rows) {
    const absl::Status status = Error(rows);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(error({{}, 0, blocks_, 0}), HasSubstr("no tokens"));
  EXPECT_THAT(error({bad_token, 0, blocks_, 0}), HasSubstr("token 256 is not in the vocabulary"));
  EXPECT_THAT(error({negative_token, 0, blocks_, 0}), HasSubstr("token -1"));
  EXPECT_THAT(error({tokens_, -1, blocks_, 0}), HasSubstr("position -1"));
  EXPECT_THAT(error({tail, 512, many, 0}), HasSubstr("position 512, the context has 512"));
  EXPECT_THAT(error({tail, 32, blocks_, 0}), HasSubstr("a table of 2 blocks, 3 are needed"));
  EXPECT_THAT(error({tokens_, 0, bad_block, 0}), HasSubstr("block 64 is not in the pool"));
  EXPECT_THAT(error({tokens_, 0, negative_block, 0}), HasSubstr("block -1"));
  EXPECT_THAT(error({tokens_, 0, blocks_, 21}), HasSubstr("21 rows of logits for 20 tokens"));
  EXPECT_THAT(error({tokens_, 0, blocks_, -1}), HasSubstr("-1 rows of logits"));
  const SequenceParams params;
  DeviceTask task{.params = &params, .round_start = 20, .work = VerifyTask{}};
  EXPECT_THAT(error({tokens_, 0, blocks_, 1, &task}), HasSubstr("a task that this model cannot run"));
  const std::vector<TokenId> too_many = SomeTokens(129, 256);
  EXPECT_THAT(error({too_many, 0, many, 0}), HasSubstr("129 rows, at most 128"));
  EXPECT_EQ(Append(*runner_, tail, 19, blocks_, 1)[0], before[19]);
}

TEST_F(RunnerForward, RefusesHiddenStatesThatCannotBe) {
  const auto error = [this](int hidden_rows, size_t embeddings, const PassOptions& pass = {}) {
    const std::vector<float> numbers(embeddings);
    const SequenceRows rows = {
        .tokens = tokens_, .blocks = blocks_, .hidden_rows = hidden_rows, .embeddings = numbers};
    const absl::Status status = runner_->Forward({&rows, 1}, pass).status();
    EXPECT_EQ(status.code(), status.ok() ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const std::vector<int> first = {0}, second = {1, 2}, last = {4}, negative = {-1};
  EXPECT_EQ(error(20, 20 * 48, {.layers = 3}), "");
  EXPECT_EQ(error(0, 48, {.layers = 2, .taps = second}), "");
  EXPECT_THAT(error(21, 0), HasSubstr("21 rows of hidden states for 20 tokens"));
  EXPECT_THAT(error(-1, 0), HasSubstr("-1 rows of hidden states"));
  EXPECT_THAT(error(0, 47), HasSubstr("47 numbers of embeddings, a row has 48"));
  EXPECT_THAT(error(0, 21 * 48), HasSubstr("21 embeddings for 20 tokens"));
  EXPECT_THAT(error(0, 0, {.layers = -1}), HasSubstr("of -1 layers, there are 3"));
  EXPECT_THAT(error(0, 0, {.layers = 4}), HasSubstr("of 4 layers, there are 3"));
  EXPECT_THAT(error(1, 0, {.taps = first}), HasSubstr("of 3 layers with a tap after 0"));
  EXPECT_THAT(error(1, 0, {.taps = last}), HasSubstr("of 3 layers with a tap after 4"));
  EXPECT_THAT(error(1, 0, {.taps = negative}), HasSubstr("with a tap after -1"));
  EXPECT_THAT(error(1, 0, {.layers = 1, .taps = second}), HasSubstr("of 1 layers with a tap after 2"));

  const ChangedBackend without([](LogitsView) { return absl::OkStatus(); });
  runner_ = *Runner::Load(Options(kModel), without);
  EXPECT_EQ(error(0, 0), "");
  EXPECT_THAT(error(1, 0), HasSubstr("hidden states, on an engine that shows none"));
  EXPECT_THAT(error(0, 48), HasSubstr("on an engine that shows none"));
  EXPECT_THAT(error(0, 0, {.layers = 1}), HasSubstr("on an engine that shows no hidden states"));
  EXPECT_THAT(error(0, 0, {.taps = second}), HasSubstr("on an engine that shows no hidden states"));
}

TEST_F(RunnerForward, AnEmptyBatchYieldsNoRows) {
  const absl::StatusOr<LogitsView> view = runner_->Forward({});
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(view->rows, 0);
  EXPECT_EQ(view->vocab, 256);
}

TEST_F(RunnerForward, TheLastPositionOfTheContextCanBeUsed) {
  std::vector<BlockId> all(32);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<BlockId>(i);
  const std::vector<TokenId> tokens = SomeTokens(512, 256);
  const Logits logits = Append(*runner_, tokens, 0, all, 128);
  EXPECT_EQ(logits.size(), 512u);
  for (const float x : logits.back()) EXPECT_TRUE(std::isfinite(x));
}

TEST_F(RunnerForward, LogitsMayBeOverwritten) {
  const Logits before = AllLogits(*runner_, tokens_);
  const SequenceRows rows = {tokens_, 0, blocks_, 20};
  const LogitsView view = *runner_->Forward({&rows, 1});
  for (int r = 0; r < view.rows; ++r) std::fill(view.row(r).begin(), view.row(r).end(), -1.0f);
  EXPECT_EQ(AllLogits(*runner_, tokens_), before);
}

// Values computed by transformers 5.23 for Llama 3.2: theta 500000, factor 32, 1 to 4, 8192, head_dim 64.
TEST(Rope, ScalesFrequenciesAsLlama3) {
  DecoderConfig spec;
  spec.head_dim = 64;
  spec.rope_theta = 500000;
  spec.rope_scaling = Llama3RopeScaling{32, 1, 4, 8192};
  const std::vector<float> frequencies = RopeInverseFrequencies(spec);
  ASSERT_EQ(frequencies.size(), 32u);
  // The fast pairs are unchanged, the slow ones are divided by 32, and those between (15 to 17) are blended.
  const std::pair<size_t, float> expected[] = {{0, 1.0f},
                                               {1, 0.663601279f},
                                               {13, 0.00483942125f},
                                               {14, 0.00321144611f},
                                               {15, 0.00129054801f},
                                               {16, 0.000429556705f},
                                               {17, 9.70828623e-05f},
                                               {18, 1.94616387e-05f},
                                               {31, 9.41830649e-08f}};
  for (const auto& [pair, frequency] : expected) EXPECT_FLOAT_EQ(frequencies[pair], frequency) << pair;
}

}  // namespace
}  // namespace outrider::testing
