// Steps padded to few shapes, as CUDA graphs need them, have the results of other steps. On the CPU.
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "common/engine/decoder/model_config.h"
#include "common/engine/decoder/safetensors.h"
#include "common/engine/self_test.h"
#include "common/engine/torch/decoder.h"
#include "common/engine/torch/step.h"
#include "common/engine/torch/step_runner.h"
#include "common/engine/torch/torch_model.h"
#include "tests/unit/device_tree_testing.h"
#include "tests/unit/torch_ranks_testing.h"

namespace outrider::libtorch {
namespace {

using ::testing::ElementsAre;

constexpr char kModel[] = "tests/data/engine/gqa3-sharded";
constexpr int kBlockSize = 4, kBlocks = 64;
const at::TensorOptions kFloat32 = at::TensorOptions(at::kFloat);
const StepOptions kOptions = {kBlockSize, /*sliding_window=*/0, /*heads_per_kv_head=*/3, kFloat32};

// Sequences of growing length, whose blocks lie scattered.
class DecodeStep : public ::testing::Test {
 protected:
  struct Sequence {
    std::vector<TokenId> tokens;
    std::vector<BlockId> blocks;
  };

  DecodeStep() {
    const SafeTensors files = *SafeTensors::Open(kModel);
    const DecoderConfig spec = ReadModelConfig(kModel)->decoder;
    decoder_.emplace(spec, *LoadWeights(files, spec, Share(), kFloat32, nullptr),
                     *PagedCache::Create(spec, kBlocks + 1, kBlockSize, kFloat32), /*ranks=*/nullptr,
                     /*observe=*/nullptr);
    for (int s = 0; s < 3; ++s) {
      Sequence& sequence = sequences_.emplace_back();
      for (int i = 0; i < 30; ++i) sequence.tokens.push_back((i * 37 + s) % spec.vocab_size);
      for (int b = 0; b < 10; ++b) sequence.blocks.push_back(b * 3 + s);
    }
  }

  // A batch with the `rows` tokens of each sequence from `position` on.
  std::vector<SequenceRows> Batch(int count, size_t position, size_t rows, int logit_rows) const {
    std::vector<SequenceRows> batch;
    for (const Sequence& sequence : absl::MakeConstSpan(sequences_).first(static_cast<size_t>(count))) {
      batch.push_back({.tokens = absl::MakeConstSpan(sequence.tokens).subspan(position, rows),
                       .position = static_cast<int>(position),
                       .blocks = sequence.blocks,
                       .logit_rows = logit_rows});
    }
    return batch;
  }
  std::vector<SequenceRows> Batch(int count, size_t position, size_t rows) const {
    return Batch(count, position, rows, static_cast<int>(rows));
  }
  std::optional<Step> Padded(const std::vector<SequenceRows>& batch) const {
    return MakeDecodeStep(batch, kBlocks, kOptions);
  }

  const c10::InferenceMode no_gradients_;
  std::optional<Decoder> decoder_;
  std::vector<Sequence> sequences_;
};

TEST_F(DecodeStep, GivesTheLogitsAndTheCacheOfAnyOtherStep) {
  for (const int count : {1, 2, 3}) {
    for (const size_t rows : {1, 2, 5}) {
      decoder_->Forward(MakeStep(Batch(3, 0, 17, 0), kOptions));
      const std::vector<SequenceRows> batch = Batch(count, 17, rows);
      const std::optional<Step> padded = Padded(batch);
      ASSERT_TRUE(padded.has_value());
      const at::Tensor found = decoder_->Forward(*padded).narrow(0, 0, count * static_cast<int64_t>(rows));
      const at::Tensor next = decoder_->Forward(MakeStep(Batch(3, 17 + rows, 1), kOptions));
      const at::Tensor expected = decoder_->Forward(MakeStep(batch, kOptions));
      EXPECT_LT((found - expected).abs().max().item<float>(), 1e-4 * expected.std().item<float>());
      // The next step can use the keys and values that it wrote.
      const at::Tensor next_of_them = next.narrow(0, 0, count);
      const at::Tensor again = decoder_->Forward(MakeStep(Batch(3, 17 + rows, 1), kOptions));
      EXPECT_LT((next_of_them - again.narrow(0, 0, count)).abs().max().item<float>(),
                1e-4 * again.std().item<float>());
    }
  }
}

// The tokens from position 17 on as trees.
TEST_F(DecodeStep, OfTreesGivesTheLogitsOfAnyOtherStep) {
  constexpr size_t kRows = 6;
  decoder_->Forward(MakeStep(Batch(3, 0, 17, 0), kOptions));
  std::vector<SequenceRows> batch = Batch(3, 17, kRows);
  const at::Tensor of_chains = decoder_->Forward(MakeStep(batch, kOptions));
  std::vector<std::vector<int>> parents;
  for (const uint32_t seed : {1, 2, 3}) parents.push_back(testing::SomeParents(kRows, 2, seed));
  for (size_t s = 0; s < batch.size(); ++s) {
    batch[s].tree_begin = 17;
    batch[s].parents = parents[s];
  }
  const std::optional<Step> padded = Padded(batch);
  ASSERT_TRUE(padded.has_value());
  const at::Tensor found = decoder_->Forward(*padded).narrow(0, 0, of_chains.size(0));
  const at::Tensor expected = decoder_->Forward(MakeStep(batch, kOptions));
  EXPECT_LT((found - expected).abs().max().item<float>(), 1e-4 * expected.std().item<float>());
  EXPECT_GT((found - of_chains).abs().max().item<float>(), 1e-2 * expected.std().item<float>());
}

// Compares with the definition, slot by slot. Some nodes were computed before.
TEST(MakeStep, ARowOfATreeAttendsToItsPathWithinTheWindow) {
  constexpr int kBegin = 9, kNodes = 11, kWindow = 4, kFirst = 13;
  const std::vector<BlockId> blocks = {3, 1, 4, 5, 9};
  const std::vector<TokenId> tokens(kBegin + kNodes - kFirst, 1);
  const StepOptions options = {kBlockSize, kWindow, /*heads_per_kv_head=*/2, kFloat32};
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    const std::vector<int> parents = testing::SomeParents(kNodes, 3, seed);
    std::vector<int> depths;
    for (const int parent : parents)
      depths.push_back(parent < 0 ? 0 : depths[static_cast<size_t>(parent)] + 1);
    const SequenceRows rows = {.tokens = tokens,
                               .position = kFirst,
                               .blocks = blocks,
                               .logit_rows = 1,
                               .tree_begin = kBegin,
                               .parents = parents};
    const Step step = MakeStep({&rows, 1}, options);
    ASSERT_EQ(step.groups.size(), 1u);
    const auto position = [&](int slot) {
      return slot < kBegin ? slot : kBegin + depths[static_cast<size_t>(slot - kBegin)];
    };
    for (int slot = kFirst; slot < kBegin + kNodes; ++slot) {
      std::vector<bool> sees(20, false);
      std::fill_n(sees.begin(), kBegin, true);
      for (int node = slot - kBegin; node >= 0; node = parents[static_cast<size_t>(node)]) {
        sees[static_cast<size_t>(kBegin + node)] = true;
      }
      const int row = slot - kFirst;
      EXPECT_EQ(step.positions[row].item<int>(), position(slot));
      EXPECT_EQ(step.blocks[row].item<int>(), blocks[static_cast<size_t>(slot / kBlockSize)]);
      EXPECT_EQ(step.slots[row].item<int>(), slot % kBlockSize);
      for (int other = 0; other < 20; ++other) {
        const bool seen = sees[static_cast<size_t>(other)];
        const bool slides = seen && position(other) > position(slot) - kWindow;
        for (const int head : {0, 1}) {
          const int at = head * static_cast<int>(tokens.size()) + row;
          EXPECT_EQ(step.groups[0].mask[0][0][at][other].item<float>() == 0, seen) << slot << " to " << other;
          EXPECT_EQ(step.groups[0].sliding_mask[0][0][at][other].item<float>() == 0, slides)
              << slot << " to " << other;
        }
      }
    }
    EXPECT_FALSE(step.groups[0].unwritten.any().item<bool>());
  }
}

// Slots before the first position are hidden and hold nothing.
TEST(MakeStep, NoRowAttendsToSlotsBeforeTheFirstPosition) {
  const std::vector<BlockId> blocks = {3, 1, 4};
  const std::vector<TokenId> tokens(6, 1);
  StepOptions options = {kBlockSize, /*sliding_window=*/4, /*heads_per_kv_head=*/2, kFloat32};
  options.first_position = 2;
  const SequenceRows rows = {.tokens = tokens, .position = 3, .blocks = blocks};
  const AttentionGroup group = MakeStep({&rows, 1}, options).groups[0];
  for (int row = 0; row < 6; ++row) {
    for (int slot = 0; slot < 12; ++slot) {
      const bool attends = slot >= 2 && slot <= 3 + row;
      EXPECT_EQ(group.mask[0][0][row][slot].item<float>() == 0, attends) << row << " to " << slot;
      EXPECT_EQ(group.sliding_mask[0][0][row][slot].item<float>() == 0, attends && slot > row - 1)
          << row << " to " << slot;
      EXPECT_EQ(group.unwritten[0][0][slot][0].item<bool>(), slot < 2 || slot > 8) << slot;
    }
  }
}

TEST(MakeStep, ListsTheRowsThatHiddenStatesAreWantedOfAndGivenFor) {
  const std::vector<BlockId> blocks = {3, 1, 4};
  const std::vector<TokenId> tokens(6, 1);
  const std::vector<float> first = {1, 2, 3, 4}, last = {5, 6};
  const std::vector<int> taps = {2, 1};
  StepOptions options = kOptions;
  options.embedding_columns = 2;
  const auto rows = [&](int hidden_rows, absl::Span<const float> embeddings) {
    return SequenceRows{
        .tokens = tokens, .blocks = blocks, .hidden_rows = hidden_rows, .embeddings = embeddings};
  };
  const SequenceRows batch[] = {rows(1, first), rows(0, {}), rows(3, last)};
  const Step step = MakeStep(batch, options, {.layers = 2, .taps = taps});
  EXPECT_EQ(step.layers, 2);
  EXPECT_THAT(step.taps, ElementsAre(2, 1));
  EXPECT_TRUE(step.hidden_rows.equal(at::tensor({5, 15, 16, 17}, at::kLong)));
  EXPECT_TRUE(step.embedded_rows.equal(at::tensor({4, 5, 17}, at::kLong)));
  EXPECT_TRUE(step.embeddings.equal(at::tensor({1, 2, 3, 4, 5, 6}, at::kFloat).view({3, 2})));
  const Step plain = MakeStep({&batch[1], 1}, options);
  EXPECT_FALSE(plain.hidden_rows.defined());
  EXPECT_FALSE(plain.embedded_rows.defined());
}

TEST_F(DecodeStep, HasSizesThatArePowersOfTwo) {
  const std::optional<Step> step = Padded(Batch(3, 17, 2));  // 19 tokens in 5 blocks
  ASSERT_TRUE(step.has_value());
  ASSERT_EQ(step->groups.size(), 1u);
  EXPECT_THAT(step->groups[0].table.sizes(), ElementsAre(4, 8));
  EXPECT_THAT(step->groups[0].mask.sizes(), ElementsAre(4, 1, 3 * 2, 32));
  EXPECT_THAT(step->tokens.sizes(), ElementsAre(8));
  EXPECT_THAT(step->logit_rows.sizes(), ElementsAre(8));
}

TEST_F(DecodeStep, HasTheShapeOfTheOneBeforeUntilItsBlocksDouble) {
  const auto shape = [&](size_t position) {
    std::vector<std::vector<int64_t>> sizes;
    for (const at::Tensor& tensor : TensorsOf(*Padded(Batch(2, position, 1)))) {
      sizes.push_back(tensor.sizes().vec());
    }
    return sizes;
  };
  EXPECT_EQ(shape(16), shape(28));  // 5 and 8 blocks
  EXPECT_NE(shape(15), shape(16));  // 4 and 5
}

TEST_F(DecodeStep, IsMadeOfBatchesThatNeedLittlePadding) {
  EXPECT_FALSE(Padded(Batch(2, 5, 2, 1)).has_value()) << "some logits are not wanted";
  std::vector<SequenceRows> unequal = Batch(2, 5, 2);
  unequal[1].tokens.remove_suffix(1);
  unequal[1].logit_rows = 1;
  EXPECT_FALSE(Padded(unequal).has_value());
  std::vector<SequenceRows> hidden = Batch(2, 5, 2);
  hidden[1].hidden_rows = 1;
  EXPECT_FALSE(Padded(hidden).has_value()) << "hidden states are wanted";
  const std::vector<float> embedding(48);
  hidden[1].hidden_rows = 0;
  hidden[1].embeddings = embedding;
  EXPECT_FALSE(Padded(hidden).has_value()) << "a row is no token's";
  EXPECT_FALSE(Padded(Batch(3, 0, 30)).has_value()) << "a prompt";
  std::vector<SequenceRows> one_long = Batch(3, 0, 1);
  one_long[0] = Batch(1, 29, 1)[0];  // 8 blocks; the others have one
  EXPECT_TRUE(Padded(one_long).has_value());
  std::vector<SequenceRows> many(32, Batch(1, 0, 1)[0]);
  many[0] = one_long[0];
  EXPECT_FALSE(Padded(many).has_value()) << "32 sequences of 8 blocks for 39";
}

// A CPU whose steps are padded as a GPU's are, and captured unless they are observed.
class PaddingRunner final : public CpuRunner {
 public:
  explicit PaddingRunner(bool observed) : observed_(observed) {}

  bool PrefersFewShapes() const override { return true; }
  at::Tensor Compute(const Step& step, Forward forward) override {
    EXPECT_FALSE(step.is_decode && observed_);
    return CpuRunner::Compute(step, forward);
  }

 private:
  const bool observed_;
};

class PaddingBackend final : public Backend {
 public:
  absl::Status Check(const RunnerOptions& /*options*/) const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Model>> Load(const DecoderConfig& spec, const TensorSource& weights,
                                              const RunnerOptions& options,
                                              ThreadPool& /*threads*/) const override {
    return MakeTorchModel(spec, weights, std::make_unique<PaddingRunner>(options.observe != nullptr),
                          options);
  }
};

TEST(PaddedSteps, PassTheSelfTest) {
  RunnerOptions options = testing::Options("gqa3-sharded");
  options.engine = "torch";
  ThreadPool threads(1);
  std::string last;
  const absl::StatusOr<bool> passed =
      SelfTestInFull(PaddingBackend(), ReadModelConfig(kModel)->decoder, options, threads,
                     [&](absl::string_view line) { last = std::string(line); });
  EXPECT_TRUE(passed.ok() && *passed) << passed.status() << ", " << last;
}

// A device that records when it ends, and when its ranks do.
class EndingRunner final : public CpuRunner {
 public:
  explicit EndingRunner(std::vector<std::string>& ended) : ended_(ended) {}
  ~EndingRunner() override { ended_.push_back("runner"); }

  std::unique_ptr<DeviceRanks> Connect(int /*rank*/, int /*size*/,
                                       absl::FunctionRef<void(absl::Span<char>)> /*share*/) override {
    return std::make_unique<Ranks>(ended_);
  }
  GraphCaptures graph_captures() const override {
    return {.count = 5, .failure = absl::InternalError("full")};
  }

 private:
  struct Ranks final : DeviceRanks {
    explicit Ranks(std::vector<std::string>& ended) : ended(ended) {}
    ~Ranks() override { ended.push_back("ranks"); }
    void Sum(at::Tensor& /*tensor*/) override {}
    at::Tensor Gather(const at::Tensor& tensor) override { return tensor; }

    std::vector<std::string>& ended;
  };

  std::vector<std::string>& ended_;
};

// A runner's graphs hold operations of NCCL. NCCL waits for their end before it ends itself.
TEST(Ranks, EndAfterTheRunnerAndItsGraphs) {
  const SafeTensors files = *SafeTensors::Open(kModel);
  const DecoderConfig spec = ReadModelConfig(kModel)->decoder;
  const std::string address = testing::FreeAddress();
  std::vector<std::string> ended[2];
  std::unique_ptr<Model> models[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      absl::StatusOr<std::unique_ptr<Model>> model =
          MakeTorchModel(spec, files, std::make_unique<EndingRunner>(ended[rank]),
                         testing::RankOptions("gqa3-sharded", 2, rank, address));
      EXPECT_TRUE(model.ok()) << model.status();
      if (model.ok()) models[rank] = *std::move(model);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::unique_ptr<Model>& model : models) {
    ASSERT_NE(model, nullptr);
    EXPECT_EQ(model->graph_captures().count, 5);
    EXPECT_EQ(model->graph_captures().failure, absl::InternalError("full"));
  }
  for (const int rank : {1, 0}) {
    models[rank] = nullptr;
    EXPECT_THAT(ended[rank], ElementsAre("runner", "ranks")) << "rank " << rank;
  }
}

}  // namespace
}  // namespace outrider::libtorch
