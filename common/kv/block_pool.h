// Hands out the blocks of a paged KV cache and counts who refers to them. It knows names only; the memory
// belongs to the engine.
#pragma once

#include <functional>
#include <list>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/block_id.h"

namespace outrider {

// A block is used (one reference or more), cached (no reference, but its content is kept until the room is
// needed) or free. Not synchronised: it belongs to the engine's thread.
class BlockPool {
 public:
  explicit BlockPool(int num_blocks);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // A block with one reference: a free one, the most recently freed first, whose memory is likely still near;
  // else the one that has been cached for longest, after `on_evict` was called with it. ResourceExhausted
  // when all are used.
  absl::StatusOr<BlockId> Allocate();
  // One more reference to a used or cached block.
  void Ref(BlockId block);
  // One less to a used one; with the last it is free, or cached if it is to be kept.
  void Unref(BlockId block);

  // From now until it is evicted, a used block is to be kept.
  void MarkCacheable(BlockId block);
  void OnEvict(std::function<void(BlockId)> on_evict) { on_evict_ = std::move(on_evict); }

  int ref_count(BlockId block) const { return states_[block].references; }
  // Only one table refers to it, and nobody else will want what it holds now.
  bool writable(BlockId block) const { return states_[block].references == 1 && !states_[block].cacheable; }
  int num_blocks() const { return static_cast<int>(states_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_cached() const { return static_cast<int>(cached_.size()); }
  // That Allocate can hand out.
  int num_available() const { return num_free() + num_cached(); }
  int num_used() const { return num_blocks() - num_available(); }

  // Internal, with what is wrong, unless: used + cached + free is the whole, the lists of free and cached
  // blocks name each of theirs once and no other, and no count is negative. O(blocks); for tests and drills.
  absl::Status CheckInvariants() const;

 private:
  struct State {
    int references = 0;
    bool cacheable = false;
    std::list<BlockId>::iterator cached_at;  // in cached_, if it is there
  };

  std::vector<State> states_;  // [num_blocks]
  std::vector<BlockId> free_;  // a stack
  std::list<BlockId> cached_;  // longest first
  std::function<void(BlockId)> on_evict_;
};

}  // namespace outrider
