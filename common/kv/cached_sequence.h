// A server's copy of one sequence: the coordinator's tokens, the drafted ones after them, and the blocks with
// their keys and values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv/block_id.h"
#include "common/kv/block_pool.h"
#include "common/kv/prefix_hash.h"
#include "common/spec/check.h"
#include "common/spec/types.h"

namespace outrider {

// A copy of a whole block. The engine must carry it out before it writes anything.
struct BlockCopy {
  BlockId from = 0;
  BlockId to = 0;
  friend bool operator==(const BlockCopy&, const BlockCopy&) = default;
};

// Maps the positions of one sequence to blocks: position t is in blocks()[t / block_size], slot t %
// block_size. Owns one reference to each of its blocks. A block may be shared with other tables (after Fork
// or Adopt) or be cacheable; such a block is never written. Reserve replaces it by a copy first
// (copy-on-write). Not thread-safe. The pool must outlive the table.
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
  void Fork(const BlockTable& from, int tokens) {
    OUTRIDER_CHECK(pool_ == from.pool_ && block_size_ == from.block_size_);
    OUTRIDER_CHECK(tokens >= 0 && tokens <= from.capacity());
    Adopt(from.blocks().first(BlocksFor(tokens)));
  }

  // Shares these blocks, which hold the first positions from now on. This table must be empty.
  void Adopt(std::span<const BlockId> blocks) {
    OUTRIDER_CHECK(blocks_.empty());
    blocks_.assign(blocks.begin(), blocks.end());
    for (BlockId block : blocks_) pool_->Ref(block);
  }

  std::span<const BlockId> blocks() const { return blocks_; }
  int block_size() const { return block_size_; }
  int capacity() const { return static_cast<int>(blocks_.size()) * block_size_; }

 private:
  int BlocksFor(int tokens) const { return (tokens + block_size_ - 1) / block_size_; }

  BlockPool* pool_;
  int block_size_;
  std::vector<BlockId> blocks_;
};

// A server's copy of one sequence. A token's slot in the table is its index. The tokens from tree_begin() on
// are the nodes of a tree, each with a parent; those before it are a chain. Without a tree, all of them are.
//
// The keys and values of the first num_computed() tokens are computed; the other tokens wait for a forward
// pass. Invariant: num_computed() <= size(), and the table backs at least num_computed() positions. Not
// thread-safe.
class CachedSequence {
 public:
  CachedSequence(BlockPool* pool, int block_size);

  // Applies an item of the wire protocol: `tokens` are the sequence's tokens from index `base` on, and
  // `prefix_hash` is the hash of the `base` tokens before them (common/kv/prefix_hash.h). Truncates to
  // `base`, then appends `tokens`. If `base` is where a tree begins, the tokens that lie on one of its paths
  // stay computed, except the last token, whose logits are wanted.
  //
  // Returns the moves of the slots that stay computed, within the blocks that the table had before. They must
  // be carried out in this order before anything is written. FAILED_PRECONDITION, with nothing changed, if
  // `base` exceeds the known tokens or the beginning of a tree (reason BASE_BEYOND_CACHED) or the known
  // prefix differs (reason PREFIX_MISMATCH). INVALID_ARGUMENT if `tokens` is empty.
  absl::StatusOr<std::vector<SlotMove>> Reconcile(uint32_t base, uint64_t prefix_hash,
                                                  std::span<const TokenId> tokens);

  // Appends a token that is not computed yet, for example a drafted one. There must be no tree.
  void Append(TokenId token) {
    OUTRIDER_CHECK(parents_.empty());
    tokens_.push_back(token);
    hashes_.push_back(ExtendPrefixHash(hashes_.back(), token));
  }
  // Appends a node that is not computed yet, which follows node `parent` of the tree, or with -1 the last
  // token before the tree. The first node begins the tree.
  void AppendNode(TokenId token, int parent) {
    OUTRIDER_CHECK(parent >= -1 && parent < static_cast<int>(parents_.size()));
    hashes_.push_back(ExtendPrefixHash(hashes_[tree_begin() + parent + 1], token));
    tokens_.push_back(token);
    parents_.push_back(parent);
  }
  // Keeps the first n tokens, n <= size(), and drops the blocks that hold none of them.
  void Truncate(int n);
  // Keeps the first n tokens of a chain, and all blocks, so that the pool, which other sequences share, is
  // not touched.
  void Rewind(int n);
  // Keeps the first n tokens and the accepted `path` of the proposal that follows them, as a chain. With a
  // tree, n must be tree_begin(). Without one the path must be a prefix of a chain. Returns moves as
  // Reconcile does.
  std::vector<SlotMove> Keep(int n, std::span<const int> path);
  // Records that the keys and values of the first n tokens are computed now, for num_computed() <= n <=
  // size().
  void MarkComputed(int n) {
    OUTRIDER_CHECK(n >= num_computed_ && n <= size() && n <= table_.capacity());
    num_computed_ = n;
  }
  // Drops all tokens and blocks, for example on preemption.
  void Reset() { Truncate(0); }

  // Makes positions [num_computed(), n) writable before they are computed; see BlockTable::Reserve.
  absl::StatusOr<std::vector<BlockCopy>> Reserve(int n) { return table_.Reserve(num_computed_, n); }

  // Makes this sequence, which must be empty, a copy of the first n tokens of `from`, n <= from.tree_begin().
  // It shares the blocks of the computed ones.
  void Fork(const CachedSequence& from, int n);

  // Shares blocks that hold the keys and values of its first tokens, so that they need not be computed again.
  // No token may be computed yet.
  void Adopt(std::span<const BlockId> blocks);

  std::span<const TokenId> tokens() const { return tokens_; }
  int size() const { return static_cast<int>(tokens_.size()); }
  int num_computed() const { return num_computed_; }
  // Index of the first node of the tree; size() without a tree.
  int tree_begin() const { return size() - static_cast<int>(parents_.size()); }
  // The parent of each node of the tree, an earlier node or -1. Empty: there is no tree.
  std::span<const int> parents() const { return parents_; }
  // The tokens before the tree and those on the path to `node`, itself included; -1 gives no path.
  std::vector<TokenId> PathTo(int node) const;
  // Hash of the first n tokens, n <= size(). If token n - 1 is a node, the hash of PathTo(node). O(1).
  uint64_t prefix_hash(int n) const { return hashes_[n]; }
  const BlockTable& table() const { return table_; }

 private:
  // The nodes on the way to a node, itself included, in order of depth.
  std::vector<int> NodesTo(int node) const;
  // The computed node whose path is the longest that `tokens` begins with; -1 if there is none.
  int DeepestMatch(std::span<const TokenId> tokens) const;

  std::vector<TokenId> tokens_;
  std::vector<uint64_t> hashes_;  // [size() + 1]
  std::vector<int> parents_;      // of the last tokens, which are nodes
  int num_computed_ = 0;
  BlockTable table_;
};

}  // namespace outrider
