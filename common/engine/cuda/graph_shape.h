// The sizes of a step's attention launches: those that a model has memory for, and those that a CUDA graph
// fixes when it is captured. Runs on the host, without CUDA.
#pragma once

#include <compare>
#include <optional>

#include "common/engine/cuda/attention_plan.h"
#include "common/engine/cuda/step_plan.h"
#include "common/engine/decoder/decoder_spec.h"

namespace outrider::cuda {

// A launch has memory for this many rows of sequences of the greatest length. For a 3B model with 131,072
// positions, that is 200 MB.
inline constexpr int kLongRows = 64;

// For a model whose cache has the layout of DecoderLayers.
AttentionShape AttentionShapeOf(const DecoderSpec& spec, int block_size);

// For steps of at most `max_rows` rows and sequences of at most `max_positions`. Steps that need more than
// the capacity are cut into several launches (CutIntoPasses).
AttentionSize AttentionCapacity(const AttentionShape& shape, int max_rows, int max_positions);

// The maximum number of blocks of a KV pool, besides one that no sequence uses: ints must name the slots of
// trees (AttentionShape::block_stride). 275 GB with heads of 64.
int MostBlocks(const AttentionShape& shape);

// A graph serves every step that has the same GraphShape.
struct GraphShape {
  StepShape step;
  AttentionSize first;  // of the attention launches of the first pass
  AttentionSize draft;  // and of those of each further pass
  friend auto operator<=>(const GraphShape&, const GraphShape&) = default;
};

// The graph that serves the step, whose shape is `step`. Its attention launches the thread blocks that this
// step needs, rounded up by less than half, not those that the longest sequences could need. Returns nothing
// if the step has to be launched without a graph: it has more than kMaxCapturedRows rows or tasks, or needs
// more than `capacity`.
std::optional<GraphShape> GraphOf(const StepPlan& plan, const StepShape& step,
                                  const AttentionShape& attention, const AttentionSize& capacity);

}  // namespace outrider::cuda
