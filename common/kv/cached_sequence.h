// A server's copy of one sequence: the coordinator's tokens, and the blocks with their keys and values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/block_table.h"
#include "common/spec/types.h"

namespace outrider {

// The keys and values of the first num_computed() tokens are computed; the other tokens wait for a forward
// pass. Invariant: num_computed() <= size(), and the table backs at least num_computed() positions. Not
// thread-safe.
class CachedSequence {
 public:
  CachedSequence(BlockPool* pool, int block_size);

  // Applies an item of the wire protocol: `tokens` are the sequence's tokens from index `base` on, and
  // `prefix_hash` is the hash of the `base` tokens before them (common/kv/prefix_hash.h). Truncates to
  // `base`, then appends `tokens`. FAILED_PRECONDITION, with nothing changed, if `base` exceeds the known
  // tokens (reason BASE_BEYOND_CACHED) or the known prefix differs (reason PREFIX_MISMATCH). INVALID_ARGUMENT
  // if `tokens` is empty.
  absl::Status Reconcile(uint32_t base, uint64_t prefix_hash, std::span<const TokenId> tokens);

  // Appends a token that is not computed yet, for example a drafted one.
  void Append(TokenId token);
  // Keeps the first n tokens, n <= size(), and drops the blocks that hold none of them.
  void Truncate(int n);
  // Keeps the first n tokens and the accepted `path` of the proposal that follows them. The path must be a
  // prefix of a chain.
  void Keep(int n, std::span<const int> path);
  // Records that the keys and values of the first n tokens are computed now, for num_computed() <= n <=
  // size().
  void MarkComputed(int n);
  // Drops all tokens and blocks, for example on preemption.
  void Reset() { Truncate(0); }

  // Makes positions [num_computed(), n) writable before they are computed; see BlockTable::Reserve.
  absl::StatusOr<std::vector<BlockCopy>> Reserve(int n) { return table_.Reserve(num_computed_, n); }

  // Makes this sequence, which must be empty, a copy of the first n tokens of `from`, n <= from.size(). It
  // shares the blocks of those that are computed.
  void Fork(const CachedSequence& from, int n);

  // Shares blocks that hold the keys and values of its first tokens, so that they need not be computed again.
  // No token may be computed yet.
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
