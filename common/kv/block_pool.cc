#include "common/kv/block_pool.h"

#include "absl/strings/str_cat.h"
#include "common/spec/check.h"

namespace outrider {

BlockPool::BlockPool(int num_blocks) : ref_counts_(num_blocks, 0) {
  OUTRIDER_CHECK(num_blocks >= 0);
  free_.reserve(num_blocks);
  // The first blocks to be handed out are the lowest.
  for (BlockId block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

absl::StatusOr<BlockId> BlockPool::Allocate() {
  if (free_.empty()) return absl::ResourceExhaustedError("kv_blocks_exhausted: no free block");
  const BlockId block = free_.back();
  free_.pop_back();
  ref_counts_[block] = 1;
  return block;
}

void BlockPool::Ref(BlockId block) {
  OUTRIDER_CHECK(block >= 0 && block < num_blocks() && ref_counts_[block] > 0);
  ++ref_counts_[block];
}

void BlockPool::Unref(BlockId block) {
  OUTRIDER_CHECK(block >= 0 && block < num_blocks() && ref_counts_[block] > 0);
  if (--ref_counts_[block] == 0) free_.push_back(block);
}

absl::Status BlockPool::CheckInvariants() const {
  std::vector<bool> listed(ref_counts_.size(), false);
  for (BlockId block : free_) {
    if (block < 0 || block >= num_blocks()) {
      return absl::InternalError(absl::StrCat("block ", block, " in the free list does not exist"));
    }
    if (listed[block]) return absl::InternalError(absl::StrCat("block ", block, " is listed free twice"));
    listed[block] = true;
  }
  for (BlockId block = 0; block < num_blocks(); ++block) {
    if (ref_counts_[block] < 0) {
      return absl::InternalError(absl::StrCat("block ", block, " has ", ref_counts_[block], " references"));
    }
    if ((ref_counts_[block] == 0) != listed[block]) {
      return absl::InternalError(absl::StrCat("block ", block, " has ", ref_counts_[block],
                                              " references and is ", listed[block] ? "" : "not ",
                                              "listed free"));
    }
  }
  return absl::OkStatus();
}

}  // namespace outrider
