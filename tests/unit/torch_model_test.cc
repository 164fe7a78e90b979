// The engine on libtorch against the CPU's kernels in the same runner, and against transformers.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>

#include "bench/temporary_folder.h"
#include "tests/unit/device_tree_testing.h"
#include "tests/unit/engine_goldens.h"

namespace outrider::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The largest difference that rounding explains in float32, as a share of the spread of what is compared.
constexpr double kTolerance = 1e-4;

RunnerOptions TorchOptions(const std::string& model) {
  RunnerOptions options = Options(model);
  options.engine = "torch";
  return options;
}

// Two runners that are given the same steps.
class Twins {
 public:
  explicit Twins(const std::string& model, int block_size = 16) {
    RunnerOptions options = Options(model);
    options.block_size = block_size;
    options.kv_blocks = 128;
    native_ = LoadOrDie(options);
    options.engine = "torch";
    torch_ = LoadOrDie(options);
  }

  int vocab() const { return native_->config().decoder.vocab_size; }

  // Runs a step on both. Returns the largest difference of the logits.
  double Step(absl::Span<const SequenceRows> batch) {
    const absl::StatusOr<LogitsView> expected = native_->Forward(batch), found = torch_->Forward(batch);
    EXPECT_TRUE(expected.ok()) << expected.status();
    EXPECT_TRUE(found.ok()) << found.status();
    if (!expected.ok() || !found.ok()) return 1;
    EXPECT_EQ(found->rows, expected->rows);
    EXPECT_EQ(found->vocab, expected->vocab);
    double largest = 0;
    for (int r = 0; r < expected->rows; ++r) {
      largest = Larger(largest, Difference(found->row(r), expected->row(r)));
    }
    return largest;
  }

  void CopyBlock(BlockId from, BlockId to) {
    native_->CopyBlock(from, to);
    torch_->CopyBlock(from, to);
  }

  // The largest difference of the keys and values of the first `length` tokens.
  double CacheDifference(absl::Span<const BlockId> blocks, int length) {
    double largest = 0;
    for (int position = 0; position < length; ++position) {
      const BlockId block = blocks[static_cast<size_t>(position / native_->block_size())];
      const int slot = position % native_->block_size();
      largest = Larger(largest, Difference(*torch_->ReadSlot(block, slot), *native_->ReadSlot(block, slot)));
    }
    return largest;
  }

  Runner& native() { return *native_; }
  Runner& torch() { return *torch_; }

 private:
  std::unique_ptr<Runner> native_, torch_;
};

// A sequence of a random history.
struct Sequence {
  std::vector<TokenId> tokens;
  std::vector<BlockId> blocks;
  size_t held = 0;  // tokens in the cache
};

class TorchModel : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, TorchModel, ::testing::ValuesIn(RandomModels()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

class TorchGolden : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, TorchGolden, ::testing::ValuesIn([] {
                           std::vector<std::string> models = RandomModels();
                           models.insert(models.end(), GemmaModels().begin(), GemmaModels().end());
                           models.insert(models.end(), QuantisedModels().begin(), QuantisedModels().end());
                           return models;
                         }()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(TorchGolden, Float32LogitsAreThoseOfTransformers) {
  const auto runner = LoadOrDie(TorchOptions(GetParam()));
  const Golden golden = ReadGolden(GetParam(), runner->config().decoder.vocab_size);
  const Logits logits = AllLogits(*runner, golden.tokens);
  ASSERT_EQ(logits.size(), golden.logits.size());
  EXPECT_LE(LargestDifference(logits, golden.logits), kTolerance * golden.spread);
}

// The logits of chunks, in one case of a token at a time.
TEST_P(TorchGolden, SoAreThoseOfChunks) {
  const auto runner = LoadOrDie(TorchOptions(GetParam()));
  const Golden golden = ReadGolden(GetParam(), runner->config().decoder.vocab_size);
  for (const int chunk : {1, 7}) {
    EXPECT_LE(LargestDifference(AllLogits(*runner, golden.tokens, chunk), golden.logits),
              kTolerance * golden.spread);
  }
}

// engine_gguf_test.cc compares the GGUF files of models that the CPU's kernels run.
class TorchGemmaFile : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, TorchGemmaFile, ::testing::ValuesIn(GemmaModels()));

// GGUF has no keys for some of the folder's settings, so the folder is given what llama.cpp assumes for them.
TEST_P(TorchGemmaFile, HasTheLogitsOfItsFolder) {
  const std::string from = DataDir(GetParam());
  nlohmann::json config = ReadJson(from + "/config.json");
  config["query_pre_attn_scalar"] = config["head_dim"];
  if (GetParam() == "gemma3") {  // every sixth layer does not slide
    for (nlohmann::json& type : config["layer_types"]) type = "sliding_attention";
  }
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/config.json") << config;
  std::filesystem::copy_file(from + "/model.safetensors", folder.path() + "/model.safetensors");

  RunnerOptions options = TorchOptions(GetParam());
  options.model_dir = folder.path();
  const auto theirs = LoadOrDie(options);
  options.model_dir = from + "/model.gguf";
  const auto ours = LoadOrDie(options);
  const Golden golden = ReadGolden(GetParam(), ours->config().decoder.vocab_size);
  EXPECT_LE(LargestDifference(AllLogits(*ours, golden.tokens), AllLogits(*theirs, golden.tokens)),
            kTolerance * golden.spread);
}

TEST_P(TorchGolden, BFloat16LogitsAreNear) {
  RunnerOptions options = TorchOptions(GetParam());
  options.dtype = "bfloat16";
  const auto runner = LoadOrDie(options);
  const Golden golden = ReadGolden(GetParam(), runner->config().decoder.vocab_size);
  const Logits logits = AllLogits(*runner, golden.tokens);
  ASSERT_EQ(logits.size(), golden.logits.size());
  EXPECT_LE(RootMeanSquareDifference(logits, golden.logits), 0.05 * golden.spread);
}

TEST_P(TorchModel, ChunksGiveTheLogitsOfTheCpu) {
  for (const int block_size : {1, 3, 16}) {
    Twins twins(GetParam(), block_size);
    const std::vector<TokenId> tokens = SomeTokens(60, twins.vocab());
    const std::vector<BlockId> blocks = BlocksFor(twins.torch(), 60, 3);
    std::mt19937 random(5);
    for (int position = 0; position < 60;) {
      const int count = std::min(60 - position, 1 + static_cast<int>(random() % 9));
      const SequenceRows rows = {
          absl::MakeConstSpan(tokens).subspan(static_cast<size_t>(position), static_cast<size_t>(count)),
          position, blocks, static_cast<int>(random() % (static_cast<unsigned>(count) + 1))};
      ASSERT_LE(twins.Step({&rows, 1}), kTolerance) << "block size " << block_size << ", " << position;
      position += count;
    }
    EXPECT_LE(twins.CacheDifference(blocks, 60), kTolerance);
  }
}

// Sequences of different lengths that grow by different counts, are truncated, and fork by copying a block.
TEST_P(TorchModel, RandomHistoriesGiveTheLogitsAndTheCacheOfTheCpu) {
  Twins twins(GetParam(), 4);
  std::mt19937 random(11);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random()) % limit; };
  std::vector<BlockId> free(128);
  std::iota(free.begin(), free.end(), 0);
  const auto take = [&] {
    std::swap(free[below(free.size())], free.back());
    const BlockId block = free.back();
    free.pop_back();
    return block;
  };
  std::vector<Sequence> sequences(5);
  for (int step = 0; step < 40; ++step) {
    for (Sequence& sequence : sequences) {
      if (below(4) == 0) sequence.held = below(sequence.held + 1);  // truncated: the rest will be overwritten
    }
    if (Sequence& from = sequences[0], &to = sequences[1]; step % 7 == 6) {
      free.insert(free.end(), to.blocks.begin(), to.blocks.end());
      to = {from.tokens, {}, from.held};
      for (const BlockId block : from.blocks) {
        to.blocks.push_back(take());
        twins.CopyBlock(block, to.blocks.back());
      }
    }
    std::vector<SequenceRows> batch;
    for (Sequence& sequence : sequences) {
      const size_t count = below(4) == 0 ? 0 : below(3) == 0 ? 1 + below(12) : 1;
      if (count == 0 || sequence.held + count > 80) {
        sequence.held = std::min<size_t>(sequence.held, 70);
        continue;
      }
      sequence.tokens.resize(sequence.held);
      for (const TokenId token : SomeTokens(static_cast<int>(count), twins.vocab(), random())) {
        sequence.tokens.push_back(token);
      }
      while (sequence.blocks.size() * 4 < sequence.tokens.size()) sequence.blocks.push_back(take());
      batch.push_back({absl::MakeConstSpan(sequence.tokens).subspan(sequence.held),
                       static_cast<int>(sequence.held), sequence.blocks, static_cast<int>(below(count + 1))});
      sequence.held = sequence.tokens.size();
    }
    if (batch.empty()) continue;
    ASSERT_LE(twins.Step(batch), kTolerance) << "step " << step;
  }
  for (const Sequence& sequence : sequences) {
    EXPECT_LE(twins.CacheDifference(sequence.blocks, static_cast<int>(sequence.held)), kTolerance);
  }
}

// Negative controls: another token in the prefix makes a difference that is much larger than those above, and
// NaN is never near.
TEST_P(TorchModel, AnotherTokenInThePrefixIsSeen) {
  Twins twins(GetParam());
  std::vector<TokenId> tokens = SomeTokens(12, twins.vocab());
  const std::vector<BlockId> blocks = BlocksFor(twins.torch(), 12);
  const auto feed = [&](Runner& runner) {
    const SequenceRows prompt = {absl::MakeConstSpan(tokens).first(11), 0, blocks, 0};
    ASSERT_TRUE(runner.Forward({&prompt, 1}).ok());
  };
  const SequenceRows last = {absl::MakeConstSpan(tokens).subspan(11), 11, blocks, 1};
  feed(twins.torch());
  feed(twins.native());
  EXPECT_LE(twins.Step({&last, 1}), kTolerance);
  tokens[3] = (tokens[3] + 1) % twins.vocab();
  feed(twins.native());
  EXPECT_GT(twins.Step({&last, 1}), 100 * kTolerance);
}

class TorchTrees : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr int kPrompt = 30, kNodes = 40,
                       kDeep = 3;  // some nodes lie further apart than a window is long

  void Load(int block_size) {
    RunnerOptions options = TorchOptions(GetParam());
    options.block_size = block_size;
    options.kv_blocks = 300;
    runner_ = LoadOrDie(options);
  }
  // Blocks for chains, beyond those of trees.
  std::vector<BlockId> Spare() const { return BlocksFor(*runner_, 120, 180); }

  static void ExpectNear(const Logits& found, const Logits& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t r = 0; r < found.size(); ++r) {
      EXPECT_LE(Difference(found[r], expected[r]), kTolerance) << "row " << r;
    }
  }

  std::unique_ptr<Runner> runner_;
};

INSTANTIATE_TEST_SUITE_P(All, TorchTrees, ::testing::ValuesIn([] {
                           std::vector<std::string> models = RandomModels();
                           models.insert(models.end(), GemmaModels().begin(), GemmaModels().end());
                           return models;
                         }()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// In one step, and in steps of nine rows.
TEST_P(TorchTrees, NodesHaveTheLogitsOfTheirPathsAsChains) {
  for (const int block_size : {3, 16}) {
    Load(block_size);
    for (const int reach : {kDeep, kNodes}) {
      const TreeSequence tree = SomeTree(*runner_, kPrompt, kNodes, reach, 7);
      const Logits expected = LogitsOfChains(*runner_, tree, Spare());
      for (const int each : {kNodes + 1, 9}) {
        FeedPrompt(*runner_, tree);
        Logits found;
        for (int slot = kPrompt - 1; slot < tree.slots(); slot += each) {
          const SequenceRows rows = tree.Rows(slot, std::min(slot + each, tree.slots()));
          for (std::vector<float>& row : LogitsOf(*runner_, {&rows, 1})) found.push_back(std::move(row));
        }
        ExpectNear(found, expected);
      }
    }
  }
}

// Sequences with equally many rows share a product of attention.
TEST_P(TorchTrees, SoTheyHaveBesideOtherTreesAndChains) {
  Load(4);
  const TreeSequence first = SomeTree(*runner_, kPrompt, 12, kDeep, 1),
                     second = SomeTree(*runner_, kPrompt + 5, 12, 12, 2, 60);
  const std::vector<TokenId> chain = SomeTokens(50, runner_->config().decoder.vocab_size, 3);
  const std::vector<BlockId> chain_blocks = BlocksFor(*runner_, 50, 120);
  Logits expected = LogitsOfChains(*runner_, first, Spare());
  const Logits of_chain = Append(*runner_, chain, 0, chain_blocks, 64);
  expected.insert(expected.end(), of_chain.end() - 13, of_chain.end());
  for (std::vector<float>& row : LogitsOfChains(*runner_, second, Spare()))
    expected.push_back(std::move(row));
  FeedPrompt(*runner_, first);
  FeedPrompt(*runner_, second);
  ExpectNear(LogitsOf(*runner_, {first.Rows(kPrompt - 1, first.slots()),
                                 {absl::MakeConstSpan(chain).subspan(37), 37, chain_blocks, 13},
                                 second.Rows(second.prompt() - 1, second.slots())}),
             expected);
}

TEST_P(TorchTrees, AnAcceptedPathGoesOnLikeAChain) {
  Load(4);
  const TreeSequence tree = SomeTree(*runner_, kPrompt, kNodes, kDeep, 5);
  FeedPrompt(*runner_, tree);
  const SequenceRows rows = tree.Rows(kPrompt - 1, tree.slots());
  LogitsOf(*runner_, {&rows, 1});
  const std::vector<int> path = tree.PathTo(kNodes - 1);
  const std::vector<SlotMove> moves = tree.MovesOf(path);
  ASSERT_FALSE(moves.empty());
  runner_->MoveSlots(tree.blocks(), moves);

  std::vector<TokenId> chain = tree.Chain(path);
  const size_t kept = chain.size();
  const std::vector<BlockId> spare = Spare();
  Append(*runner_, chain, 0, spare, 64);
  for (size_t p = 0; p < kept; ++p) {
    const int slot = static_cast<int>(p % 4);
    EXPECT_LE(
        Difference(*runner_->ReadSlot(tree.blocks()[p / 4], slot), *runner_->ReadSlot(spare[p / 4], slot)),
        kTolerance)
        << "position " << p;
  }
  const std::vector<TokenId> more = SomeTokens(9, runner_->config().decoder.vocab_size, 6);
  const int position = static_cast<int>(kept);
  ExpectNear(Append(*runner_, more, position, tree.blocks(), 9), Append(*runner_, more, position, spare, 9));
}

// Negative control: a node with another parent has other logits.
TEST_P(TorchTrees, AnotherParentIsSeen) {
  Load(16);
  const TreeSequence tree = SomeTree(*runner_, kPrompt, kNodes, kDeep, 7);
  FeedPrompt(*runner_, tree);
  SequenceRows rows = tree.Rows(kPrompt - 1, tree.slots());
  const Logits expected = LogitsOf(*runner_, {&rows, 1});
  std::vector<int> parents(rows.parents.begin(), rows.parents.end());
  parents.back() = parents.back() == -1 ? 0 : -1;
  rows.parents = parents;
  const Logits found = LogitsOf(*runner_, {&rows, 1});
  ASSERT_EQ(found.size(), expected.size());
  EXPECT_LE(Difference(found[kNodes - 1], expected[kNodes - 1]), kTolerance);
  EXPECT_GT(Difference(found[kNodes], expected[kNodes]), 100 * kTolerance);
}

TEST(Difference, IsNeverSmallWhereANumberIsMissing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> expected = {1, 2, 3};
  EXPECT_FALSE(Difference({{nan, 2, 3}}, expected) <= kTolerance);
  EXPECT_FALSE(Difference({{1, 2, nan}}, expected) <= kTolerance);
  EXPECT_FALSE(LargestDifference({{1, nan, 3}}, {expected}) <= kTolerance);
}

TEST(TorchRunner, SaysWhatItIs) {
  RunnerOptions options = TorchOptions("gqa3-sharded");
  options.dtype = "auto";
  options.threads = 2;
  const auto runner = LoadOrDie(options);
  EXPECT_EQ(runner->dtype(), "float32");
  EXPECT_EQ(runner->kernel_name(), "torch");
  EXPECT_FALSE(runner->row_invariant());
  EXPECT_EQ(runner->threads(), 2);
  EXPECT_EQ(runner->kv_blocks(), 64);
  EXPECT_EQ(runner->bytes_per_block(), 2u * 3 * 2 * 16 * 16 * 4);
  options.engine = "native";
  EXPECT_TRUE(LoadOrDie(options)->row_invariant());
  options.dtype = "float32";
  // The CPU packs its weights with padding.
  EXPECT_LE(runner->weight_bytes(), LoadOrDie(options)->weight_bytes());
}

TEST(TorchRunner, RefusesWhatItCannotDo) {
  const auto error = [](auto&& change) {
    RunnerOptions options = TorchOptions("gqa3-sharded");
    change(options);
    return std::string(Runner::Load(options).status().message());
  };
  EXPECT_EQ(error([](auto& o) { o.dtype = "int8"; }),
            "--dtype int8: must be one of auto, float32, bfloat16 with --engine torch --device cpu");
  EXPECT_THAT(error([](auto& o) { o.kernels = "portable"; }),
              HasSubstr("are for --engine native --device cpu"));
  EXPECT_THAT(error([](auto& o) { o.device = "cuda:0"; }), HasSubstr("--engine torch --device cuda:0: "));
  EXPECT_THAT(error([](auto& o) { o.model_dir = "tests/data/engine"; }), HasSubstr("config.json"));
}

TEST(TorchRunner, LetsOthersSizeThePool) {
  RunnerOptions options = TorchOptions("gqa3-sharded");
  options.kv_blocks = 0;
  options.pool_bytes = [](double /*free_bytes*/, size_t block_bytes) {
    return 7.5 * static_cast<double>(block_bytes);
  };
  EXPECT_EQ(LoadOrDie(options)->kv_blocks(), 7);
}

TEST(TorchRunner, SaysWhatCannotBeAllocated) {
  RunnerOptions options = TorchOptions("gqa3-sharded");
  options.kv_blocks = std::numeric_limits<int>::max();
  options.block_size = 1 << 20;
  const absl::Status status = Runner::Load(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.message(), HasSubstr("--kv-blocks"));
}

class TorchShippedModel : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Pair, TorchShippedModel, ::testing::Values("tiny-target", "tiny-draft"),
                         [](const auto& info) {
                           return info.param == "tiny-target" ? std::string("Target") : std::string("Draft");
                         });

TEST_P(TorchShippedModel, Float32TopLogitsAreThoseOfTransformers) {
  const nlohmann::json golden = ReadJson(DataDir(GetParam() + ".json"));
  RunnerOptions options = TorchOptions("");
  options.model_dir = "models/" + GetParam();
  const Logits logits = AllLogits(*LoadOrDie(options), golden["tokens"].get<std::vector<TokenId>>());
  const std::vector<int> best = golden["float32_best"].get<std::vector<int>>();
  const double tolerance = kTolerance * golden["spread"].get<double>();
  ASSERT_EQ(logits.size(), best.size());
  for (size_t r = 0; r < logits.size(); ++r) {
    EXPECT_EQ(Best(logits[r]), best[r]) << "position " << r;
    for (size_t i = 0; i < golden["top_tokens"][r].size(); ++i) {
      const float logit = logits[r][golden["top_tokens"][r][i].get<size_t>()];
      ASSERT_NEAR(logit, golden["top_logits"][r][i].get<float>(), tolerance) << "position " << r;
    }
  }
}

TEST(TorchModel, AHeadOfFrequentTokensIsThatOfTheOtherEngine) {
  RunnerOptions options = TorchOptions("");
  options.model_dir = "models/tiny-draft";
  options.frequent_tokens = 100;
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5};
  const std::vector<BlockId> blocks = {0};
  const Logits found = Append(*LoadOrDie(options), tokens, 0, blocks, 5);
  options.engine = "native";
  const Logits expected = Append(*LoadOrDie(options), tokens, 0, blocks, 5);
  for (size_t r = 0; r < expected.size(); ++r) {
    int listed = 0;
    for (size_t token = 0; token < expected[r].size(); ++token) {
      listed += expected[r][token] > -1e30f;
      EXPECT_NEAR(found[r][token], expected[r][token], 1e-3);
    }
    EXPECT_EQ(listed, 100);
  }
}

}  // namespace
}  // namespace outrider::testing
