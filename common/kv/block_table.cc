#include "common/kv/block_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/spec/check.h"
#include "common/spec/status.h"

namespace outrider {

BlockTable::BlockTable(BlockPool* pool, int block_size) : pool_(pool), block_size_(block_size) {
  OUTRIDER_CHECK(pool != nullptr && block_size > 0);
}

BlockTable::BlockTable(BlockTable&& other) noexcept
    : pool_(other.pool_), block_size_(other.block_size_), blocks_(std::exchange(other.blocks_, {})) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this == &other) return *this;
  Clear();
  pool_ = other.pool_;
  block_size_ = other.block_size_;
  blocks_ = std::exchange(other.blocks_, {});
  return *this;
}

int BlockTable::BlocksNeeded(int begin, int end) const {
  if (end <= begin) return 0;
  int needed = std::max(BlocksFor(end) - static_cast<int>(blocks_.size()), 0);
  for (int i = begin / block_size_; i < BlocksFor(end) && i < static_cast<int>(blocks_.size()); ++i) {
    if (!pool_->writable(blocks_[i])) ++needed;
  }
  return needed;
}

absl::StatusOr<std::vector<BlockCopy>> BlockTable::Reserve(int begin, int end) {
  OUTRIDER_CHECK(begin >= 0 && begin <= capacity());
  std::vector<BlockCopy> copies;
  if (end <= begin) return copies;
  const int needed = BlocksNeeded(begin, end);
  if (needed > pool_->num_available()) {
    return MakeError(absl::StatusCode::kResourceExhausted, "KV_BLOCKS_EXHAUSTED",
                     absl::StrCat(needed, " blocks needed, ", pool_->num_available(), " of ",
                                  pool_->num_blocks(), " available"));
  }
  const int held = static_cast<int>(blocks_.size());
  for (int i = begin / block_size_; i < BlocksFor(end); ++i) {
    if (i < held && pool_->writable(blocks_[i])) continue;
    const BlockId fresh = *pool_->Allocate();
    if (i >= held) {
      blocks_.push_back(fresh);
      continue;
    }
    // Only the first block can hold positions below `begin`. Later shared blocks are overwritten entirely, so
    // they need no copy.
    if (i == begin / block_size_ && begin % block_size_ != 0) copies.push_back({blocks_[i], fresh});
    pool_->Unref(blocks_[i]);
    blocks_[i] = fresh;
  }
  return copies;
}

void BlockTable::Truncate(int tokens) {
  OUTRIDER_CHECK(tokens >= 0);
  while (static_cast<int>(blocks_.size()) > BlocksFor(tokens)) {
    pool_->Unref(blocks_.back());
    blocks_.pop_back();
  }
}

void BlockTable::Fork(const BlockTable& from, int tokens) {
  OUTRIDER_CHECK(pool_ == from.pool_ && block_size_ == from.block_size_);
  OUTRIDER_CHECK(tokens >= 0 && tokens <= from.capacity());
  Adopt(from.blocks().first(BlocksFor(tokens)));
}

void BlockTable::Adopt(std::span<const BlockId> blocks) {
  OUTRIDER_CHECK(blocks_.empty());
  blocks_.assign(blocks.begin(), blocks.end());
  for (BlockId block : blocks_) pool_->Ref(block);
}

}  // namespace outrider
