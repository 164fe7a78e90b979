// Trees of drafted tokens on the GPU: the results of a node have the bits of its path as a chain.
#include <cstdint>

#include "gpu_model.h"
#include "tests/unit/device_tree_testing.h"

namespace outrider::testing {
namespace {

// Trees begin in a split, near its end, so that only some of the nodes lie in it, and after it.
constexpr int kPrompts[] = {21, 251, 300};

class CudaTrees : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Runner> Load(int block_size) const {
    RunnerOptions options = Options("");
    options.block_size = block_size;
    options.kv_blocks = 1280 / block_size;
    options.max_batch_rows = 320;
    return Runner::Load(OnGpu(options, GetParam()), Gpu()).value();
  }
};

INSTANTIATE_TEST_SUITE_P(All, CudaTrees, ::testing::Values("bfloat16", "fp8"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CudaTrees, NodesHaveTheBitsOfTheirPathsAsChains) {
  const auto runner = Load(8);
  for (const int prompt : kPrompts) {
    for (const int reach : {2, 16}) {
      const TreeSequence tree = SomeTree(*runner, prompt, 16, reach, static_cast<uint32_t>(prompt + reach));
      const BlockId beyond = static_cast<BlockId>(tree.blocks().size());
      const Logits chains = LogitsOfChains(*runner, tree, BlocksFor(*runner, tree.slots(), beyond));
      for (const int most : {100, 100, 5}) {  // the second time by a graph
        EXPECT_EQ(DifferentRows(LogitsOfTree(*runner, tree, most), chains), 0)
            << "after " << prompt << " tokens, reach " << reach << ", " << most << " rows a step";
      }
    }
  }
}

// In one step with another tree, a chain, and a sequence for which the device decides.
TEST_P(CudaTrees, BesideOthersTheBitsAreTheSame) {
  const auto runner = Load(16);
  const int vocab = runner->config().decoder.vocab_size;
  const TreeSequence first = SomeTree(*runner, 251, 12, 3, 1), second = SomeTree(*runner, 9, 20, 20, 2, 20);
  const std::vector<TokenId> chain = SomeTokens(60, vocab, 3);
  const std::vector<BlockId> blocks = BlocksFor(*runner, 60, 30), other_blocks = BlocksFor(*runner, 60, 40);
  Logits expected = LogitsOfTree(*runner, first, 100);
  for (const auto& rows : {Append(*runner, chain, 0, blocks, 60), LogitsOfTree(*runner, second, 100)})
    expected.insert(expected.end(), rows.begin(), rows.end());
  const absl::Span<const TokenId> all = chain;
  const SequenceParams params;
  DeviceTask task{.params = &params, .round_start = 60, .work = VerifyTask{}};
  const SequenceRows batch[] = {first.Rows(first.prompt() - 1, first.slots()),
                                {all, 0, blocks, 60},
                                {all, 0, other_blocks, 1, &task},
                                second.Rows(second.prompt() - 1, second.slots())};
  EXPECT_EQ(DifferentRows(LogitsOf(*runner, batch), expected), 0);
  EXPECT_TRUE(task.status.ok()) << task.status;
}

TEST_P(CudaTrees, AnAcceptedPathGoesOnWithTheBitsOfAChain) {
  const auto runner = Load(4);
  const int vocab = runner->config().decoder.vocab_size;
  for (const int prompt : kPrompts) {
    const TreeSequence tree = SomeTree(*runner, prompt, 16, 3, 5);
    LogitsOfTree(*runner, tree, 100);
    const std::vector<int> path = tree.PathTo(15);
    const std::vector<SlotMove> moves = tree.MovesOf(path);
    ASSERT_GT(moves.size(), 1u);
    runner->MoveSlots(tree.blocks(), moves);

    const std::vector<TokenId> chain = tree.Chain(path);
    const int size = static_cast<int>(chain.size());
    const std::vector<BlockId> blocks = BlocksFor(*runner, size + 9),
                               spare = BlocksFor(*runner, size + 9, 160);
    Append(*runner, chain, 0, spare, 100);
    for (int p = 0; p < size; ++p) {
      const size_t block = static_cast<size_t>(p / 4);
      EXPECT_EQ(*runner->ReadSlot(tree.blocks()[block], p % 4), *runner->ReadSlot(spare[block], p % 4))
          << "position " << p << " after " << prompt;
    }
    const std::vector<TokenId> more = SomeTokens(9, vocab, 77);
    EXPECT_EQ(DifferentRows(Append(*runner, more, size, blocks, 9), Append(*runner, more, size, spare, 9)),
              0);
  }
}

// The negative control.
TEST_P(CudaTrees, AnotherParentIsSeen) {
  const auto runner = Load(16);
  for (const int prompt : kPrompts) {
    const TreeSequence tree = SomeTree(*runner, prompt, 12, 3, 7);
    const Logits logits = LogitsOfTree(*runner, tree, 100);
    std::vector<int> parents = SomeParents(12, 3, 7);
    ASSERT_NE(parents[11], 8);
    parents[11] = 8;
    SequenceRows rows = tree.Rows(prompt - 1, tree.slots());
    rows.parents = parents;
    EXPECT_EQ(DifferentRows(LogitsOf(*runner, {&rows, 1}), logits), 1);
  }
}

}  // namespace
}  // namespace outrider::testing
