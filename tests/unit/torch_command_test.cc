// The commands that rank 0 sends the other ranks, and those that are refused.
#include <gmock/gmock.h>

#include "common/engine/torch/command.h"

namespace outrider::libtorch {
namespace {

using ::testing::ElementsAreArray;

TEST(Command, BringsABatchAcross) {
  const std::vector<TokenId> tokens = {7, 8, 9};
  const std::vector<BlockId> blocks = {4, 1};
  const std::vector<int> parents = {-1, 0, 0};
  std::vector<SequenceRows> batch(40, {.tokens = tokens, .position = 20, .blocks = blocks, .logit_rows = 2});
  batch[3].blocks = {};
  batch[5].tree_begin = 19;
  batch[5].parents = parents;
  absl::StatusOr<Command> decoded = Command::Decode(EncodeForward(batch));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  const Command command = *std::move(decoded);
  ASSERT_EQ(command.batch.size(), batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    EXPECT_THAT(command.batch[i].tokens, ElementsAreArray(tokens));
    EXPECT_THAT(command.batch[i].blocks, ElementsAreArray(batch[i].blocks));
    EXPECT_EQ(command.batch[i].position, 20);
    EXPECT_EQ(command.batch[i].logit_rows, 2);
    EXPECT_EQ(command.batch[i].tree_begin, batch[i].tree_begin);
    EXPECT_THAT(command.batch[i].parents, ElementsAreArray(batch[i].parents));
  }
}

TEST(Command, BringsACopyAcross) {
  const absl::StatusOr<Command> command = Command::Decode(EncodeCopy(3, 5));
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_TRUE(command->batch.empty());
  EXPECT_EQ(command->from, 3);
  EXPECT_EQ(command->to, 5);
}

TEST(Command, BringsMovesAcross) {
  const std::vector<BlockId> blocks = {6, 2};
  const std::vector<SlotMove> moves = {{9, 7}, {12, 8}};
  const absl::StatusOr<Command> command = Command::Decode(EncodeMoves(blocks, moves));
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_TRUE(command->batch.empty());
  EXPECT_THAT(command->blocks, ElementsAreArray(blocks));
  EXPECT_THAT(command->moves, ElementsAreArray(moves));
}

TEST(Command, IsNeverReadBeyondItsEnd) {
  const TokenId token = 1;
  const BlockId block = 0;
  const SequenceRows rows = {{&token, 1}, 0, {&block, 1}, 1};
  const SlotMove move = {2, 1};
  const std::vector<int64_t> whole = EncodeForward({&rows, 1});
  for (const std::vector<int64_t>& numbers : {whole, EncodeMoves({&block, 1}, {&move, 1})}) {
    for (size_t size = 0; size < numbers.size(); ++size) {
      EXPECT_FALSE(Command::Decode({numbers.data(), size}).ok()) << size;
    }
  }
  std::vector<int64_t> longer = EncodeCopy(1, 2);
  longer.push_back(0);
  EXPECT_FALSE(Command::Decode(longer).ok());
  EXPECT_FALSE(Command::Decode({7}).ok());
  std::vector<int64_t> huge = whole;
  for (const int64_t count : {int64_t{-1}, int64_t{1} << 62}) {
    huge[4] = count;  // of tokens
    EXPECT_FALSE(Command::Decode(huge).ok()) << count;
  }
}

}  // namespace
}  // namespace outrider::libtorch
