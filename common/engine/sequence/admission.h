// Whether an item may be taken in, and whether it is the one that was taken in before.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/engine/work_item.h"

namespace outrider {

// What the model and its cache hold.
struct SequenceLimits {
  int context = 0;  // tokens of a sequence, drafted ones included
  int vocab = 0;
  int kv_blocks = 0;
  int block_size = 0;
};

// INVALID_ARGUMENT, reason CONTEXT_EXCEEDED, CACHE_TOO_SMALL or PROMPT_LOGPROBS_BASE, for an item that could
// never be served, however idle the server is.
absl::Status CheckLimits(const WorkItem& item, const SequenceLimits& limits);

// Names what an item says, apart from how it says it: base and budget may differ when it is sent again. Never
// 0.
uint64_t DigestOf(const WorkItem& item);

}  // namespace outrider
