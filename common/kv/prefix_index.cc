#include "common/kv/prefix_index.h"

#include <algorithm>

#include "common/spec/check.h"

namespace outrider {

PrefixIndex::PrefixIndex(BlockPool* pool, int block_size)
    : pool_(pool), block_size_(static_cast<size_t>(block_size)), key_of_(pool->num_blocks()) {
  pool_->OnEvict([this](BlockId block) {
    const auto it = entries_.find(key_of_[block]);
    if (it != entries_.end() && it->second.block == block) entries_.erase(it);
  });
}

const PrefixIndex::Entry* PrefixIndex::FindEntry(const CachedSequence& sequence, size_t index,
                                                 uint64_t parent, uint64_t salt) const {
  const auto it = entries_.find(KeyOf(sequence, index, salt));
  if (it == entries_.end() || it->second.parent != parent || it->second.salt != salt) return nullptr;
  const std::span<const TokenId> tokens = TokensOf(sequence, index);
  return std::equal(tokens.begin(), tokens.end(), it->second.tokens.begin()) ? &it->second : nullptr;
}

PrefixIndex::Match PrefixIndex::Find(const CachedSequence& sequence, int limit, uint64_t salt) const {
  Match match;
  const size_t full = static_cast<size_t>(std::min(limit, sequence.size())) / block_size_;
  for (size_t index = 0; index < full; ++index) {
    const Entry* entry = FindEntry(sequence, index, index == 0 ? 0 : match.cursor.back(), salt);
    if (entry == nullptr) break;
    match.blocks.push_back(entry->block);
    match.cursor.push_back(entry->id);
  }
  return match;
}

void PrefixIndex::Insert(const CachedSequence& sequence, int n, Cursor& cursor, uint64_t salt) {
  OUTRIDER_CHECK(n <= sequence.num_computed());
  const size_t full = static_cast<size_t>(n) / block_size_;
  for (size_t index = cursor.size(); index < full; ++index) {
    const uint64_t parent = index == 0 ? 0 : cursor.back();
    if (const Entry* known = FindEntry(sequence, index, parent, salt); known != nullptr) {
      cursor.push_back(known->id);
      continue;
    }
    const uint64_t key = KeyOf(sequence, index, salt);
    const BlockId block = sequence.table().blocks()[index];
    const std::span<const TokenId> tokens = TokensOf(sequence, index);
    // An entry that this replaces has other tokens, or belongs to a chain that cannot be found because its
    // beginning was evicted.
    entries_.insert_or_assign(
        key, Entry{++last_id_, parent, block, salt, std::vector<TokenId>(tokens.begin(), tokens.end())});
    key_of_[block] = key;
    pool_->MarkCacheable(block);
    cursor.push_back(last_id_);
  }
}

}  // namespace outrider
