// Rank 0's commands to the other ranks, as numbers that cross between processes.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/kv/block_id.h"

namespace outrider::libtorch {

// A forward pass, moves between slots, or a copy of a block. Movable, not copyable: the batch refers to
// `lists`.
struct Command {
  // INVALID_ARGUMENT if these are not the numbers of a command.
  static absl::StatusOr<Command> Decode(absl::Span<const int64_t> numbers);

  Command() = default;
  Command(Command&&) = default;

  std::vector<SequenceRows> batch;          // empty unless it is a forward pass
  std::vector<std::vector<int32_t>> lists;  // tokens, blocks and parents of each sequence
  std::vector<SlotMove> moves;              // empty unless it moves slots of a sequence with `blocks`
  std::vector<BlockId> blocks;
  BlockId from = 0, to = 0;  // of a copy
};

std::vector<int64_t> EncodeForward(absl::Span<const SequenceRows> batch);
// There must be at least one move.
std::vector<int64_t> EncodeMoves(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves);
std::vector<int64_t> EncodeCopy(BlockId from, BlockId to);

}  // namespace outrider::libtorch
