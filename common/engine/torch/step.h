// A batch as tensors.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/kv/block_id.h"

namespace outrider::libtorch {

// Sequences with equal numbers of rows and similar lengths, whose attention is computed at once.
struct AttentionGroup {
  int64_t sequences = 0;
  int64_t rows_each = 0;
  at::Tensor rows;   // [sequences * rows_each], rows of the step, sequence by sequence
  at::Tensor table;  // [sequences, blocks], padded by repeating a sequence's last block
  // [sequences, 1, heads_per_kv_head * rows_each, blocks * block_size]: 0 where a row attends, else
  // -infinity. Sliding layers use sliding_mask, which is undefined if there are no such layers.
  at::Tensor mask;
  at::Tensor sliding_mask;
  at::Tensor unwritten;  // [sequences, 1, blocks * block_size, 1]: past the last row or before first_position
};

// A row is a token. Rows are those of the batch, in its order. Everything is on the model's device; indices
// are int64.
struct Step {
  at::Tensor tokens;      // [rows]
  at::Tensor positions;   // [rows]
  at::Tensor blocks;      // [rows], where a row's key and value go: block and slot
  at::Tensor slots;       // [rows]
  at::Tensor logit_rows;  // [wanted], the rows whose logits are wanted
  std::vector<AttentionGroup> groups;
  int layers = 0;            // how many of the first layers are computed; 0: all
  at::Tensor hidden_rows;    // [wanted], the rows whose hidden states are wanted; undefined if none are
  std::vector<int> taps;     // hidden states are also wanted after these numbers of layers
  at::Tensor embedded_rows;  // [given], the rows whose embeddings are given; undefined if there are none
  at::Tensor embeddings;     // float32 [given, embedding_columns], of these rows
  bool is_decode = false;    // made by MakeDecodeStep, and may be captured
};

// The properties of the model that its steps depend on.
struct StepOptions {
  int block_size = 0;
  int sliding_window = 0;     // of DecoderConfig; 0 if no layer slides
  int heads_per_kv_head = 1;  // query heads per KV head; the masks repeat their rows for each
  at::TensorOptions tensors;  // the masks' dtype, and the device
  int embedding_columns = 0;  // of DecoderConfig, as is first_position
  int first_position = 0;
};

Step MakeStep(absl::Span<const SequenceRows> batch, const StepOptions& options, const PassOptions& pass = {});

// Float32 [rows, columns] as a tensor on the host, without a copy.
at::Tensor RowsOf(absl::Span<const float> numbers, int64_t columns);

// The maximum number of rows in a decode step, padding included.
inline constexpr int64_t kMaxDecodeRows = 64;

// Makes the step of a few sequences with equal numbers of rows, all with logits and none with hidden states.
// The step has one group. Its sizes, except for the rows per sequence, are powers of two, so that few shapes
// occur. Padding sequences come last, write to the block `spare` and yield meaningless logits. Returns
// nothing for other batches, or if most of the step would be padding.
std::optional<Step> MakeDecodeStep(absl::Span<const SequenceRows> batch, BlockId spare,
                                   const StepOptions& options);

// All tensors of a decode step, in a fixed order.
std::vector<at::Tensor> TensorsOf(const Step& step);

}  // namespace outrider::libtorch
