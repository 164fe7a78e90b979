// What a CUDA graph of a step fixes when it is captured. Runs on the host, without CUDA.
#pragma once

#include <compare>
#include <optional>

#include "common/engine/cuda/attention_plan.h"
#include "common/engine/cuda/step_plan.h"

namespace outrider::cuda {

// A graph serves every step that has the same GraphShape.
struct GraphShape {
  StepShape step;
  AttentionSize first;  // of the attention launches of the first pass
  AttentionSize draft;  // and of those of each further pass
  friend auto operator<=>(const GraphShape&, const GraphShape&) = default;
};

// The graph that serves the step, of shape `step`. The thread blocks that its attention launches follow what
// this step needs, rounded up by less than half, and not what the longest sequences could need. Nothing if
// the step has to be launched without a graph: it has more than kMaxCapturedRows rows or tasks, or needs more
// than `capacity`.
std::optional<GraphShape> GraphOf(const StepPlan& plan, const StepShape& step,
                                  const AttentionShape& attention, const AttentionSize& capacity);

}  // namespace outrider::cuda
