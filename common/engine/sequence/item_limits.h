// Checks whether an item can be served, and identifies repeated items.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/engine/work_item.h"

namespace outrider {

// The capacity of the model and its KV cache.
struct SequenceLimits {
  int context = 0;  // positions of a sequence, drafted ones included
  int vocab = 0;
  int kv_blocks = 0;
  int block_size = 0;
};

// INVALID_ARGUMENT, reason CONTEXT_EXCEEDED, CACHE_TOO_SMALL or PROMPT_LOGPROBS_BASE, for an item that could
// not be served even by an idle server.
absl::Status CheckLimits(const WorkItem& item, const SequenceLimits& limits);

// A hash of an item's content. It does not depend on what may differ when the item is sent again: base,
// budget, and whether it is a branch. Never 0.
uint64_t DigestOf(const WorkItem& item);

}  // namespace outrider
