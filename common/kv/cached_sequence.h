// What a server holds of one sequence: a cache of the coordinator's tokens and of their keys and values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/block_table.h"
#include "common/spec/types.h"

namespace outrider {

// tokens() are known; the first num_computed() of them have their KV computed, the rest wait to be fed.
// Invariant: num_computed() <= tokens().size() and the table backs at least num_computed() positions. Not
// synchronised, no clock.
class CachedSequence {
 public:
  CachedSequence(BlockPool* pool, int block_size);

  // The wire contract of an item: `tokens` are the sequence's tokens from index `base` on, and `prefix_hash`
  // is the hash of the `base` tokens before them (common/kv/prefix_hash.h). Truncates to `base`, then appends
  // `tokens`. FailedPrecondition when base exceeds the known tokens (BASE_BEYOND_CACHED) or the prefix is
  // another one (PREFIX_MISMATCH); nothing has changed then and the caller reports num_computed().
  // InvalidArgument for empty tokens.
  absl::Status Reconcile(uint32_t base, uint64_t prefix_hash, std::span<const TokenId> tokens);

  // Adds a token that is not cached yet, e.g. a drafted one.
  void Append(TokenId token);
  // Keeps the first n tokens, n <= size(); gives back blocks that hold none of them.
  void Truncate(int n);
  // Keeps the first n tokens and, of the proposal that was appended after them, the nodes of `path`, a prefix
  // of a chain.
  void Keep(int n, std::span<const int> path);
  // The KV of the first n tokens is computed now; num_computed() <= n <= size().
  void MarkComputed(int n);
  // Forgets everything, e.g. when preempted.
  void Reset() { Truncate(0); }

  // Blocks for positions [num_computed(), n), to be called before they are fed; see BlockTable::Reserve.
  absl::StatusOr<std::vector<BlockCopy>> Reserve(int n) { return table_.Reserve(num_computed_, n); }

  // Becomes a copy of the first n tokens of `from`, n <= from.size(), that shares the blocks of those that
  // are cached. This one must be empty.
  void Fork(const CachedSequence& from, int n);

  // Shares blocks that hold what its first tokens would yield, instead of computing it; nothing is cached
  // yet.
  void Adopt(std::span<const BlockId> blocks);

  std::span<const TokenId> tokens() const { return tokens_; }
  int size() const { return static_cast<int>(tokens_.size()); }
  int num_computed() const { return num_computed_; }
  // Hash of the first n tokens, n <= size(). O(1).
  uint64_t prefix_hash(int n) const { return hashes_[n]; }
  const BlockTable& table() const { return table_; }

 private:
  std::vector<TokenId> tokens_;
  std::vector<uint64_t> hashes_;  // [size() + 1]
  int num_computed_ = 0;
  BlockTable table_;
};

}  // namespace outrider
