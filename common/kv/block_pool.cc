#include "common/kv/block_pool.h"

#include "absl/strings/str_cat.h"
#include "common/spec/status.h"

namespace outrider {

BlockPool::BlockPool(int num_blocks) : states_(num_blocks) {
  OUTRIDER_CHECK(num_blocks >= 0);
  free_.reserve(num_blocks);
  // Low ids are allocated first.
  for (BlockId block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

absl::StatusOr<BlockId> BlockPool::Allocate() {
  if (free_.empty() && !cached_.empty()) {
    const BlockId oldest = cached_.front();
    cached_.pop_front();
    states_[oldest].cacheable = false;
    free_.push_back(oldest);
    if (on_evict_) on_evict_(oldest);
  }
  if (free_.empty())
    return MakeError(absl::StatusCode::kResourceExhausted, "KV_BLOCKS_EXHAUSTED", "no free block");
  const BlockId block = free_.back();
  free_.pop_back();
  states_[block].references = 1;
  return block;
}

absl::Status BlockPool::CheckInvariants() const {
  enum Listed { kNowhere, kFree, kCached };
  std::vector<Listed> listed(states_.size(), kNowhere);
  const auto list = [&](BlockId block, Listed as) {
    if (block < 0 || block >= num_blocks()) {
      return absl::InternalError(absl::StrCat("block ", block, " is listed but does not exist"));
    }
    if (listed[block] != kNowhere)
      return absl::InternalError(absl::StrCat("block ", block, " is listed twice"));
    listed[block] = as;
    return absl::OkStatus();
  };
  for (BlockId block : free_) OUTRIDER_TRY(list(block, kFree));
  for (BlockId block : cached_) OUTRIDER_TRY(list(block, kCached));
  for (BlockId block = 0; block < num_blocks(); ++block) {
    const State& state = states_[block];
    const Listed expected = state.references > 0 ? kNowhere : state.cacheable ? kCached : kFree;
    if (state.references < 0 || listed[block] != expected) {
      return absl::InternalError(absl::StrCat("block ", block, " has ", state.references, " references, is ",
                                              state.cacheable ? "" : "not ", "cacheable, and is in list ",
                                              static_cast<int>(listed[block])));
    }
  }
  return absl::OkStatus();
}

}  // namespace outrider
