// The prefix cache's index: finds blocks with the keys and values of a sequence's first tokens, so that they
// need not be computed again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/kv/block_pool.h"
#include "common/kv/cached_sequence.h"

namespace outrider {

// The keys and values of a token depend only on the tokens up to it, so a full block can serve every sequence
// that begins with the same tokens. Entries form chains: each names the entry of the preceding block. An
// entry is looked up by the salt and the hash of all tokens up to the block's end and then compared token by
// token. A hash collision, accidental or crafted, is therefore a miss and never wrong data. Entries of
// different salts never match, so a client with one salt cannot tell from a hit what was sent under
// another.
//
// An entry lives until the pool evicts its block or an insertion with the same hash replaces it. Not
// thread-safe.
class PrefixIndex {
 public:
  // The entries of a sequence's leading blocks, up to the first block that is not in the index.
  using Cursor = std::vector<uint64_t>;

  PrefixIndex(BlockPool* pool, int block_size);

  // The longest chain of blocks over the first `limit` tokens of the sequence that were inserted with this
  // salt, first block first, and its cursor. Takes no reference.
  struct Match {
    std::vector<BlockId> blocks;
    Cursor cursor;
  };
  Match Find(const CachedSequence& sequence, int limit, uint64_t salt = 0) const;

  // Adds the full blocks among the first n tokens, which must be computed and final, and marks them
  // cacheable. A block with the same content that is already in the index stays there. `cursor` is the
  // sequence's; it advances.
  void Insert(const CachedSequence& sequence, int n, Cursor& cursor, uint64_t salt = 0);

  int size() const { return static_cast<int>(entries_.size()); }

 private:
  struct Entry {
    uint64_t id = 0;      // from 1 on, never reused
    uint64_t parent = 0;  // id of the preceding block's entry; 0 for a first block
    BlockId block = 0;
    uint64_t salt = 0;
    std::vector<TokenId> tokens;
  };

  // The key in entries_ of block `index` of the sequence.
  uint64_t KeyOf(const CachedSequence& sequence, size_t index, uint64_t salt) const {
    return sequence.prefix_hash(static_cast<int>((index + 1) * block_size_)) ^ salt;
  }
  // The entry of that key if its parent is `parent` and its salt and tokens match, else null.
  const Entry* FindEntry(const CachedSequence& sequence, size_t index, uint64_t parent, uint64_t salt) const;
  std::span<const TokenId> TokensOf(const CachedSequence& sequence, size_t index) const {
    return sequence.tokens().subspan(index * block_size_, block_size_);
  }

  BlockPool* const pool_;
  const size_t block_size_;
  uint64_t last_id_ = 0;
  absl::flat_hash_map<uint64_t, Entry> entries_;  // by KeyOf
  std::vector<uint64_t> key_of_;                  // [num_blocks], key in entries_
};

}  // namespace outrider
