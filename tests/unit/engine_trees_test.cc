// Trees of drafted tokens on the CPU: the results of a node are, bit for bit, those of its path as a chain.
#include <algorithm>
#include <tuple>

#include "tests/unit/device_tree_testing.h"

namespace outrider::testing {
namespace {

constexpr int kPrompt = 21;

class Trees : public ::testing::TestWithParam<EngineCase> {
 protected:
  std::unique_ptr<Runner> Load(int block_size) const {
    RunnerOptions options = Options(std::get<0>(GetParam()));
    options.kernels = std::get<1>(GetParam());
    options.dtype = std::get<2>(GetParam());
    options.kv_blocks = options.kv_blocks * options.block_size / block_size;
    options.block_size = block_size;
    return LoadOrDie(options);
  }
};

INSTANTIATE_TEST_SUITE_P(All, Trees, ::testing::ValuesIn(EngineCases()),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(Trees, NodesHaveTheBitsOfTheirPathsAsChains) {
  for (const auto& [nodes, reach, block_size] :
       {std::tuple(2, 2, 16), {7, 3, 4}, {24, 24, 16}, {24, 2, 8}, {64, 10, 16}}) {
    const auto runner = Load(block_size);
    const TreeSequence tree = SomeTree(*runner, kPrompt, nodes, reach, static_cast<uint32_t>(nodes + reach));
    const BlockId beyond = static_cast<BlockId>(tree.blocks().size());
    const Logits chains = LogitsOfChains(*runner, tree, BlocksFor(*runner, tree.slots(), beyond));
    for (const int most : {100, 5, 1}) {
      EXPECT_EQ(DifferentRows(LogitsOfTree(*runner, tree, most), chains), 0)
          << nodes << " nodes of reach " << reach << " in blocks of " << block_size << ", " << most
          << " rows a step";
    }
  }
}

TEST_P(Trees, AnAcceptedPathGoesOnWithTheBitsOfAChain) {
  const auto runner = Load(4);
  const int vocab = runner->config().decoder.vocab_size;
  for (const int node : {0, 7, 15}) {
    const TreeSequence tree = SomeTree(*runner, kPrompt, 16, 6, 5);
    LogitsOfTree(*runner, tree, 100);
    const std::vector<int> path = tree.PathTo(node);
    runner->MoveSlots(tree.blocks(), tree.MovesOf(path));
    const std::vector<TokenId> more = SomeTokens(9, vocab, 77);
    const int size = kPrompt + static_cast<int>(path.size());
    const std::vector<BlockId> blocks = BlocksFor(*runner, size + 9);
    const Logits after = Append(*runner, more, size, blocks, 9);

    std::vector<TokenId> chain = tree.Chain(path);
    chain.insert(chain.end(), more.begin(), more.end());
    const Logits expected = Append(*runner, chain, 0, BlocksFor(*runner, size + 9, 20), 9);
    EXPECT_EQ(DifferentRows(after, {expected.end() - 9, expected.end()}), 0) << "node " << node;
  }
}

TEST_P(Trees, BesideOthersTheBitsAreTheSame) {
  const auto runner = Load(16);
  const TreeSequence first = SomeTree(*runner, kPrompt, 12, 3, 1),
                     second = SomeTree(*runner, 9, 20, 20, 2, 6);
  const Logits alone = LogitsOfTree(*runner, first, 100), other = LogitsOfTree(*runner, second, 100);
  const SequenceRows both[] = {first.Rows(kPrompt - 1, first.slots()), second.Rows(8, second.slots())};
  Logits expected = alone;
  expected.insert(expected.end(), other.begin(), other.end());
  EXPECT_EQ(DifferentRows(LogitsOf(*runner, both), expected), 0);
}

// The negative control of the law above.
TEST_P(Trees, AnotherParentIsSeen) {
  const auto runner = Load(16);
  const TreeSequence tree = SomeTree(*runner, kPrompt, 12, 3, 7);
  const Logits logits = LogitsOfTree(*runner, tree, 100);
  std::vector<int> parents = SomeParents(12, 3, 7);
  ASSERT_NE(parents[11], 8);
  parents[11] = 8;
  SequenceRows rows = tree.Rows(kPrompt - 1, tree.slots());
  rows.parents = parents;
  EXPECT_EQ(DifferentRows(LogitsOf(*runner, {&rows, 1}), logits), 1);
}

}  // namespace
}  // namespace outrider::testing
