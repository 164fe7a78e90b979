// Rank 0's commands to the other ranks, as numbers that cross between processes.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/kv/block_id.h"

namespace outrider::libtorch {

// A forward pass, moves between slots, or a copy of a block. Movable, not copyable: the batch refers to the
// command's members.
class Command {
 public:
  // INVALID_ARGUMENT if these are not the numbers of a command.
  static absl::StatusOr<Command> Decode(absl::Span<const int64_t> numbers);

  // Empty unless it is a forward pass.
  absl::Span<const SequenceRows> batch() const { return batch_; }
  // Empty unless it is moves, in a sequence with these blocks.
  absl::Span<const SlotMove> moves() const { return moves_; }
  absl::Span<const BlockId> blocks() const { return moved_blocks_; }
  // Of a copy.
  BlockId from() const { return from_; }
  BlockId to() const { return to_; }

  Command(Command&&) = default;
  Command& operator=(Command&&) = default;

 private:
  Command() = default;

  std::vector<std::vector<TokenId>> tokens_;  // of each sequence
  std::vector<std::vector<BlockId>> blocks_;
  std::vector<std::vector<int>> parents_;
  std::vector<SequenceRows> batch_;
  std::vector<SlotMove> moves_;
  std::vector<BlockId> moved_blocks_;
  BlockId from_ = 0, to_ = 0;
};

std::vector<int64_t> EncodeForward(absl::Span<const SequenceRows> batch);
// At least one move.
std::vector<int64_t> EncodeMoves(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves);
std::vector<int64_t> EncodeCopy(BlockId from, BlockId to);

}  // namespace outrider::libtorch
