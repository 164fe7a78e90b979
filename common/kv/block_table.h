// Where the KV cache of one sequence lies: position t is in slot t % block_size of blocks()[t / block_size].
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv/block_id.h"
#include "common/kv/block_pool.h"

namespace outrider {

// A copy of a whole block that the engine has to carry out before anything is written.
struct BlockCopy {
  BlockId from = 0;
  BlockId to = 0;
  friend bool operator==(const BlockCopy&, const BlockCopy&) = default;
};

// Owns one reference to each of its blocks. Blocks may be shared with other tables (after Fork or Adopt), or
// kept by the pool for whoever may want them; neither is ever written: Reserve replaces it by a copy first.
// Not synchronised. The pool must outlive the table.
class BlockTable {
 public:
  BlockTable(BlockPool* pool, int block_size);
  ~BlockTable() { Clear(); }
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;

  // Makes positions [begin, end) writable: backed by blocks that are writable. Positions below
  // `begin` keep their content. Returns the copies to carry out, in this order and before any write of the
  // same step (at most one: the block that holds begin - 1 and begin). ResourceExhausted if the pool has too
  // few blocks, and then nothing has changed. Needs begin <= capacity().
  absl::StatusOr<std::vector<BlockCopy>> Reserve(int begin, int end);

  // How many new blocks Reserve(begin, end) would take from the pool.
  int BlocksNeeded(int begin, int end) const;

  // Gives back the blocks that hold no position below `tokens`. Never copies: that happens when the kept part
  // of a shared block is written next.
  void Truncate(int tokens);
  void Clear() { Truncate(0); }

  // Shares the blocks of the first `tokens` positions of `from`, which must have them; this table must be
  // empty and of the same pool.
  void Fork(const BlockTable& from, int tokens);

  // The same with blocks of no table in particular: they hold the first positions from now on.
  void Adopt(std::span<const BlockId> blocks);

  std::span<const BlockId> blocks() const { return blocks_; }
  int block_size() const { return block_size_; }
  int capacity() const { return static_cast<int>(blocks_.size()) * block_size_; }

 private:
  int BlocksFor(int tokens) const { return (tokens + block_size_ - 1) / block_size_; }

  BlockPool* pool_;
  int block_size_;
  std::vector<BlockId> blocks_;
};

}  // namespace outrider
