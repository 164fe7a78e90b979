// Finds blocks that hold the keys and values of tokens that a sequence begins with, so that they need not be
// computed again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/kv/block_pool.h"
#include "common/kv/cached_sequence.h"

namespace outrider {

// What a row of the cache holds is a function of the tokens up to it, so that a full block can serve every
// sequence that begins with the same tokens. Entries form chains: each names the entry of the block before
// it. They are looked up by the hash of all tokens up to the block's end and then compared token by token, so
// that a collision, by accident or by design, finds nothing and harms nobody.
//
// An entry lives as long as the pool keeps its block. Not synchronised.
class PrefixIndex {
 public:
  // How far a sequence's blocks are known to the index: the entries of its first blocks.
  using Cursor = std::vector<uint64_t>;

  PrefixIndex(BlockPool* pool, int block_size);

  // The blocks of the longest known chain over the first `limit` tokens of the sequence, first block first,
  // and the cursor that belongs to it. Takes no reference.
  struct Match {
    std::vector<BlockId> blocks;
    Cursor cursor;
  };
  Match Find(const CachedSequence& sequence, int limit) const;

  // Makes the full blocks among the first n tokens known, which are cached and will not change any more, and
  // has the pool keep them. Where the same content is known in another block, that one stays.
  void Insert(const CachedSequence& sequence, int n, Cursor& cursor);

  int size() const { return static_cast<int>(entries_.size()); }

 private:
  struct Entry {
    uint64_t id = 0;      // from 1 on, never used again
    uint64_t parent = 0;  // number of the block before; 0: this is the first
    BlockId block = 0;
    std::vector<TokenId> tokens;
  };

  // The entry of block `index` of the sequence, after the entry numbered `before`; null if there is none.
  const Entry* FindEntry(const CachedSequence& sequence, size_t index, uint64_t parent) const;
  std::span<const TokenId> TokensOf(const CachedSequence& sequence, size_t index) const;
  void EraseEntry(BlockId block);

  BlockPool* const pool_;
  const size_t block_size_;
  uint64_t last_id_ = 0;
  absl::flat_hash_map<uint64_t, Entry> entries_;  // by the hash of the tokens up to the block's end
  std::vector<uint64_t> hash_of_;                 // [num_blocks], of entries
};

}  // namespace outrider
