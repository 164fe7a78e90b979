// Several ranks that share a model, as threads of this process with real sockets between them.
#include <algorithm>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "tests/unit/device_tree_testing.h"
#include "tests/unit/engine_goldens.h"
#include "tests/unit/torch_ranks_testing.h"

namespace outrider::testing {
namespace {

using ::testing::HasSubstr;

constexpr double kRanksTolerance = 1e-4;  // of the spread, as for one process

// Rank 0, with the others on threads.
class Ranks {
 public:
  Ranks(const std::string& model, int size, int follower_blocks = 64) {
    const std::string rendezvous = FreeAddress();
    for (int rank = 1; rank < size; ++rank) {
      followers_.emplace_back([=, this] {
        RunnerOptions options = RankOptions(model, size, rank, rendezvous);
        options.kv_blocks = follower_blocks;
        const auto runner = LoadOrDie(options);
        ASSERT_NE(runner, nullptr);
        EXPECT_EQ(runner->Follow().code(), absl::StatusCode::kUnavailable);
      });
    }
    first_ = LoadOrDie(RankOptions(model, size, 0, rendezvous));
  }
  ~Ranks() {
    first_ = nullptr;
    for (std::thread& follower : followers_) follower.join();
  }
  Runner& first() { return *first_; }

 private:
  std::vector<std::thread> followers_;
  std::unique_ptr<Runner> first_;
};

struct RanksCase {
  std::string model;
  int ranks;
};

class TorchRanks : public ::testing::TestWithParam<RanksCase> {};

INSTANTIATE_TEST_SUITE_P(All, TorchRanks,
                         ::testing::Values(RanksCase{"mha-float32", 4}, RanksCase{"gqa3-sharded", 2},
                                           RanksCase{"mistral-window", 2}, RanksCase{"qwen2-bias", 2},
                                           RanksCase{"qwen3-head-norms", 2}, RanksCase{"gemma2", 2},
                                           RanksCase{"gemma3", 2}),
                         [](const auto& info) {
                           std::string name = info.param.model;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(TorchRanks, LogitsAreThoseOfTransformers) {
  Ranks ranks(GetParam().model, GetParam().ranks);
  Runner& runner = ranks.first();
  const Golden golden = ReadGolden(GetParam().model, runner.config().decoder.vocab_size);
  for (const int chunk : {1, 7, 64}) {
    const Logits logits = AllLogits(runner, golden.tokens, chunk);
    ASSERT_EQ(logits.size(), golden.logits.size());
    EXPECT_LE(LargestDifference(logits, golden.logits), kRanksTolerance * golden.spread) << chunk;
  }
}

TEST(RankGroup, ShowsNoHiddenStates) {
  Ranks ranks("mha-float32", 2);
  Model& model = ranks.first().model();
  EXPECT_FALSE(model.has_hidden_states());
  std::vector<float> row(64);
  EXPECT_EQ(model.Project(row).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(model.ReadEmbeddings({{1}}, absl::MakeSpan(row)).code(), absl::StatusCode::kUnimplemented);
  const TensorView matrix = {ElementType::kFloat32, {1, 64}, reinterpret_cast<const char*>(row.data())};
  EXPECT_EQ(model.LoadMatrix(matrix).status().code(), absl::StatusCode::kUnimplemented);
  const std::vector<TokenId> tokens = {1, 2};
  const std::vector<BlockId> blocks = {0};
  const SequenceRows rows = {.tokens = tokens, .blocks = blocks, .hidden_rows = 1};
  EXPECT_EQ(ranks.first().Forward({&rows, 1}).status().code(), absl::StatusCode::kInvalidArgument);
}

// The batch has more numbers than one message of a command, and blocks are copied.
TEST(RankGroup, LongBatchesAndForksGiveTheLogitsOfOneProcess) {
  const auto alone = [] {
    RunnerOptions options = Options("mha-float32");
    options.engine = "torch";
    return LoadOrDie(options);
  }();
  Ranks ranks("mha-float32", 2);
  const std::vector<TokenId> tokens = SomeTokens(100, 256);
  std::vector<BlockId> blocks, copies, others;
  for (BlockId block = 0; block < 21; block += 3) {
    blocks.push_back(block);
    copies.push_back(block + 1);
    others.push_back(block + 2);
  }
  Logits logits[2];
  for (Runner* runner : {alone.get(), &ranks.first()}) {
    Logits& rows = logits[runner == alone.get() ? 0 : 1];
    const absl::Span<const TokenId> all = tokens;
    const SequenceRows prompts[] = {{all.first(60), 0, blocks, 60}, {all.first(50), 0, others, 50}};
    const auto first = runner->Forward(prompts);
    ASSERT_TRUE(first.ok()) << first.status();
    for (int r = 0; r < first->rows; ++r) rows.push_back(RowOf(*first, r));
    for (size_t b = 0; b < blocks.size(); ++b) runner->CopyBlock(blocks[b], copies[b]);
    const SequenceRows fork = {all.subspan(60), 60, copies, 40};
    const auto second = runner->Forward({&fork, 1});
    ASSERT_TRUE(second.ok()) << second.status();
    for (int r = 0; r < second->rows; ++r) rows.push_back(RowOf(*second, r));
  }
  ASSERT_EQ(logits[0].size(), 150u);
  EXPECT_LE(LargestDifference(logits[0], logits[1]), 1e-4);
}

// The ranks compute a tree, keep its longest path and go on after it.
TEST_P(TorchRanks, NodesHaveTheLogitsOfTheirPathsAsChains) {
  Ranks ranks(GetParam().model, GetParam().ranks);
  Runner& runner = ranks.first();
  const TreeSequence tree = SomeTree(runner, /*prompt=*/30, /*nodes=*/20, /*reach=*/3, /*seed=*/7);
  const std::vector<BlockId> spare = BlocksFor(runner, 60, 32);
  const double tolerance =
      kRanksTolerance * ReadGolden(GetParam().model, runner.config().decoder.vocab_size).spread;
  const Logits expected = LogitsOfChains(runner, tree, spare);
  FeedPrompt(runner, tree);
  const SequenceRows rows = tree.Rows(tree.prompt() - 1, tree.slots());
  const Logits found = LogitsOf(runner, {&rows, 1});
  ASSERT_EQ(found.size(), expected.size());
  EXPECT_LE(LargestDifference(found, expected), tolerance);

  const std::vector<int> path = tree.PathTo(tree.nodes() - 1);
  ASSERT_FALSE(tree.MovesOf(path).empty());
  runner.MoveSlots(tree.blocks(), tree.MovesOf(path));
  const std::vector<TokenId> chain = tree.Chain(path), more = SomeTokens(5, 200);
  Append(runner, chain, 0, spare, 64);
  const int position = static_cast<int>(chain.size());
  const Logits after_tree = Append(runner, more, position, tree.blocks(), 5);
  EXPECT_LE(LargestDifference(after_tree, Append(runner, more, position, spare, 5)), tolerance);
}

TEST(RankGroup, ThePoolIsThatOfTheRankWithTheSmallest) {
  Ranks ranks("mha-float32", 2, 40);
  EXPECT_EQ(ranks.first().kv_blocks(), 40);
  EXPECT_EQ(ranks.first().bytes_per_block(), 2u * 2 * 2 * 16 * 16 * 4) << "of its own heads";
}

TEST(RankGroup, ARankThatIsGoneIsToldAtOnceAndEndsTheNextStep) {
  const std::string rendezvous = FreeAddress();
  absl::Mutex mutex;
  std::string lost;
  std::unique_ptr<Runner> second;
  std::thread other([&] { second = LoadOrDie(RankOptions("mha-float32", 2, 1, rendezvous)); });
  RunnerOptions options = RankOptions("mha-float32", 2, 0, rendezvous);
  options.parallel.on_lost = [&](const absl::Status& why) {
    absl::MutexLock lock(&mutex);
    lost = std::string(why.message());
  };
  const auto first = LoadOrDie(options);
  other.join();
  second = nullptr;
  {
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(
        +[](std::string* message) { return !message->empty(); }, &lost));
    EXPECT_EQ(lost, "rank 1 of 2 is gone");
  }
  const TokenId token = 1;
  const BlockId block = 0;
  const SequenceRows rows = {{&token, 1}, 0, {&block, 1}, 1};
  EXPECT_EQ(first->Forward({&rows, 1}).status().code(), absl::StatusCode::kInternal);
}

TEST(RankGroup, RefuseToDiffer) {
  const std::pair<std::string, int> others[] = {{"mha-float32", 8}, {"qwen2-bias", 16}};
  for (const auto& [model, block_size] : others) {
    const std::string rendezvous = FreeAddress();
    const auto refusal = [&](int rank, const std::string& its_model, int its_size) {
      RunnerOptions options = RankOptions(its_model, 2, rank, rendezvous);
      options.block_size = its_size;
      return std::string(Runner::Load(options).status().message());
    };
    std::string second;
    std::thread other([&] { second = refusal(1, model, block_size); });
    EXPECT_EQ(refusal(0, "mha-float32", 16),
              "--rank 0: the ranks differ in --model, --dtype, --block-size or --frequent-tokens");
    other.join();
    EXPECT_EQ(second, "--rank 1: the ranks differ in --model, --dtype, --block-size or --frequent-tokens");
  }
}

// A chunk in the middle of a prompt is such a step.
TEST(RankGroup, AStepMayWantNoLogits) {
  Ranks ranks("mha-float32", 2);
  const std::vector<TokenId> tokens = SomeTokens(20, 256);
  const std::vector<BlockId> blocks = {0, 1};
  const SequenceRows chunk = {absl::MakeConstSpan(tokens).first(12), 0, blocks, 0};
  const auto nothing = ranks.first().Forward({&chunk, 1});
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_EQ(nothing->rows, 0);
  const SequenceRows rest = {absl::MakeConstSpan(tokens).subspan(12), 12, blocks, 8};
  const auto last = ranks.first().Forward({&rest, 1});
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->rows, 8);
}

TEST(RankGroup, RefuseWhatCannotBeShared) {
  const auto error = [](const std::string& model, auto&& change) {
    RunnerOptions options = RankOptions(model, 2, 0, "127.0.0.1:29500");
    change(options);
    return std::string(Runner::Load(options).status().message());
  };
  EXPECT_EQ(
      error("gqa4-llama3-rope", [](auto&) {}),
      "--tensor-parallel 2: must divide the 1 heads of keys and values of " + DataDir("gqa4-llama3-rope"));
  EXPECT_THAT(error("mha-float32", [](auto& o) { o.parallel.size = 3; }),
              HasSubstr("--tensor-parallel 3: must divide the 4 attention heads"));
  EXPECT_EQ(error("mha-float32", [](auto& o) { o.parallel.size = 65; }),
            "--tensor-parallel 65: must be in [1, 64]");
  EXPECT_EQ(error("mha-float32", [](auto& o) { o.parallel.rank = 2; }),
            "--rank 2: must be in [0, 1] with --tensor-parallel 2");
  EXPECT_EQ(error("mha-float32", [](auto& o) { o.engine = "native"; }),
            "--tensor-parallel 2: needs --engine torch");
  for (const std::string address : {"nowhere", "host:0", ":1", "host:x", "host:65536"}) {
    EXPECT_EQ(error("mha-float32", [&](auto& o) { o.parallel.rendezvous = address; }),
              "--rendezvous " + address + ": must be HOST:PORT with a port from 1 to 65535");
  }
}

}  // namespace
}  // namespace outrider::testing
