// What goes into a forward pass and what comes out of it.
#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "common/engine/device_task.h"
#include "common/kv/block_id.h"
#include "common/spec/types.h"

namespace outrider {

// One sequence's part in a batch.
struct SequenceRows {
  absl::Span<const TokenId> tokens;  // the new tokens, at least one
  int position = 0;  // of tokens[0]: how many tokens of this sequence are in the cache already
  absl::Span<const BlockId> blocks;  // position p is in blocks[p / block_size]; covers all new tokens
  int logit_rows = 0;                // of how many tokens, the last ones, the logits are returned
  // What the model is to do with these logits itself, instead of returning them; only what it can
  // (Model::CanRun). The blocks must cover the tokens that a draft adds, too.
  DeviceTask* task = nullptr;
};

// float32 logits, row-major [rows, vocab]. Row r follows the batch's order: the first sequence's logit_rows
// in order of position, then the second's; sequences with a task have none. The caller may overwrite them in
// place (sampling controls do).
struct LogitsView {
  float* data = nullptr;
  int rows = 0;
  int vocab = 0;

  absl::Span<float> row(int r) const {
    return absl::MakeSpan(data + static_cast<size_t>(r) * static_cast<size_t>(vocab),
                          static_cast<size_t>(vocab));
  }
};

}  // namespace outrider
