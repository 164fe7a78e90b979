// Maps the positions of one sequence to blocks: position t is in blocks()[t / block_size], slot t %
// block_size.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv/block_id.h"
#include "common/kv/block_pool.h"

namespace outrider {

// A copy of a whole block. The engine must carry it out before it writes anything.
struct BlockCopy {
  BlockId from = 0;
  BlockId to = 0;
  friend bool operator==(const BlockCopy&, const BlockCopy&) = default;
};

// Owns one reference to each of its blocks. A block may be shared with other tables (after Fork or Adopt) or
// be cacheable; such a block is never written. Reserve replaces it by a copy first (copy-on-write). Not
// thread-safe. The pool must outlive the table.
class BlockTable {
 public:
  BlockTable(BlockPool* pool, int block_size);
  ~BlockTable() { Clear(); }
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;

  // Makes positions [begin, end) writable, for begin <= capacity(). Positions below `begin` keep their
  // content. Returns the copies that the engine must carry out, in this order and before any write of the
  // same step. There is at most one: of the block that holds both begin - 1 and begin. RESOURCE_EXHAUSTED,
  // with nothing changed, if the pool has too few blocks.
  absl::StatusOr<std::vector<BlockCopy>> Reserve(int begin, int end);

  // How many blocks Reserve(begin, end) would allocate.
  int BlocksNeeded(int begin, int end) const;

  // Drops the blocks that hold no position below `tokens`. Never copies: the next write to the kept part of a
  // shared block does that.
  void Truncate(int tokens);
  void Clear() { Truncate(0); }

  // Shares the blocks of the first `tokens` positions of `from`. This table must be empty and use the same
  // pool. Needs tokens <= from.capacity().
  void Fork(const BlockTable& from, int tokens);

  // Shares these blocks, which hold the first positions from now on. This table must be empty.
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
