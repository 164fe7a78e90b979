// What rank 0 tells the other ranks to do, as numbers that cross between processes.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/kv/block_id.h"

namespace outrider::libtorch {

// A forward pass, or a copy of a block. Movable, not copyable: the batch refers to what the command holds.
class Command {
 public:
  // INVALID_ARGUMENT if these are not the numbers of a command.
  static absl::StatusOr<Command> Decode(absl::Span<const int64_t> numbers);

  // Empty for a copy.
  absl::Span<const SequenceRows> batch() const { return batch_; }
  BlockId from() const { return from_; }
  BlockId to() const { return to_; }

  Command(Command&&) = default;
  Command& operator=(Command&&) = default;

 private:
  Command() = default;

  std::vector<std::vector<TokenId>> tokens_;  // of each sequence
  std::vector<std::vector<BlockId>> blocks_;
  std::vector<SequenceRows> batch_;
  BlockId from_ = 0, to_ = 0;
};

std::vector<int64_t> EncodeForward(absl::Span<const SequenceRows> batch);
std::vector<int64_t> EncodeCopy(BlockId from, BlockId to);

}  // namespace outrider::libtorch
