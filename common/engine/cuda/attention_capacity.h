// How much a model's launches of attention have memory for. Runs on the host, without CUDA.
#pragma once

#include "common/engine/cuda/attention_plan.h"
#include "common/engine/decoder/decoder_spec.h"

namespace outrider::cuda {

// A launch has memory for this many rows of sequences of the greatest length. Of a 3B model with 131,072
// positions, that is 200 MB.
inline constexpr int kLongRows = 64;

// Of a model whose cache is as DecoderLayers has it.
AttentionShape AttentionShapeOf(const DecoderSpec& spec, int block_size);

// For steps of at most `max_rows` rows and sequences of at most `max_positions`. Steps that need more than
// the capacity are cut into several launches (CutIntoPasses).
AttentionSize AttentionCapacity(const AttentionShape& shape, int max_rows, int max_positions);

// How many blocks a KV pool can have, with one more that no sequence uses: the slots of trees have to be
// named by ints (AttentionShape::block_stride). 275 GB with heads of 64.
int MostBlocks(const AttentionShape& shape);

}  // namespace outrider::cuda
