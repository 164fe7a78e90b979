// Allocates and reference-counts the blocks of a paged KV cache. It deals in ids only; the engine owns the
// memory.
#pragma once

#include <functional>
#include <list>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/block_id.h"
#include "common/spec/check.h"

namespace outrider {

// A block is used (it has references), cached (it has none, but its content is kept until the block is
// needed) or free. Not thread-safe: the engine thread owns it.
class BlockPool {
 public:
  explicit BlockPool(int num_blocks);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Returns a block with one reference. Prefers the most recently freed block, whose memory is likely still
  // in the CPU's caches. With no free block it evicts the least recently cached one and calls `on_evict` with
  // it. RESOURCE_EXHAUSTED if all blocks are used.
  absl::StatusOr<BlockId> Allocate();
  // Adds a reference to a used or cached block.
  void Ref(BlockId block) {
    OUTRIDER_CHECK(block >= 0 && block < num_blocks());
    State& state = states_[block];
    OUTRIDER_CHECK(state.references > 0 || state.cacheable);
    if (state.references == 0) cached_.erase(state.cached_at);
    ++state.references;
  }
  // Drops a reference to a used block. A block without references becomes cached if it is cacheable, else
  // free.
  void Unref(BlockId block) {
    OUTRIDER_CHECK(block >= 0 && block < num_blocks());
    State& state = states_[block];
    OUTRIDER_CHECK(state.references > 0);
    if (--state.references > 0) return;
    if (state.cacheable) {
      state.cached_at = cached_.insert(cached_.end(), block);
    } else {
      free_.push_back(block);
    }
  }

  // Marks a used block cacheable until it is evicted: its content may serve other sequences.
  void MarkCacheable(BlockId block) {
    OUTRIDER_CHECK(block >= 0 && block < num_blocks() && states_[block].references > 0);
    states_[block].cacheable = true;
  }
  void OnEvict(std::function<void(BlockId)> on_evict) { on_evict_ = std::move(on_evict); }

  int ref_count(BlockId block) const { return states_[block].references; }
  // Whether the holder of a reference may write to the block: nobody else refers to it, and it is not
  // cacheable.
  bool writable(BlockId block) const { return states_[block].references == 1 && !states_[block].cacheable; }
  int num_blocks() const { return static_cast<int>(states_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_cached() const { return static_cast<int>(cached_.size()); }
  // Blocks that Allocate can return.
  int num_available() const { return num_free() + num_cached(); }
  int num_used() const { return num_blocks() - num_available(); }

  // INTERNAL, with the violation, unless every block is in the list that fits its state, and in no other
  // list. O(blocks); for tests and fault injection.
  absl::Status CheckInvariants() const;

 private:
  struct State {
    int references = 0;
    bool cacheable = false;
    std::list<BlockId>::iterator cached_at;  // valid while the block is in cached_
  };

  std::vector<State> states_;  // [num_blocks]
  std::vector<BlockId> free_;  // a stack: the last one freed is allocated first
  std::list<BlockId> cached_;  // least recently cached first
  std::function<void(BlockId)> on_evict_;
};

}  // namespace outrider
