// Hands out the blocks of a paged KV cache and counts who refers to them. It knows names only; the memory
// belongs to the engine.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/block_id.h"

namespace outrider {

// A block is used (one reference or more) or free. Not synchronised: it belongs to the engine's thread.
class BlockPool {
 public:
  explicit BlockPool(int num_blocks);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // A free block with one reference; the most recently freed first, whose memory is likely still near.
  // ResourceExhausted when there is none.
  absl::StatusOr<BlockId> Allocate();
  // One more, or one less, reference to a used block; with the last reference the block is free.
  void Ref(BlockId block);
  void Unref(BlockId block);

  int ref_count(BlockId block) const { return ref_counts_[block]; }
  int num_blocks() const { return static_cast<int>(ref_counts_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_used() const { return num_blocks() - num_free(); }

  // Internal, with what is wrong, unless: every block is either used or free, the free list names each free
  // block once, and no count is negative. O(blocks); for tests and drills.
  absl::Status CheckInvariants() const;

 private:
  std::vector<int> ref_counts_;  // [num_blocks]
  std::vector<BlockId> free_;    // a stack
};

}  // namespace outrider
