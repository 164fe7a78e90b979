#include "common/engine/cuda/graph_shape.h"

#include <algorithm>
#include <bit>

namespace outrider::cuda {
namespace {

// 1, 2, 3, 4, 6, 8, 12, 16, ...
int RoundUp(int count) {
  const int step = std::max(static_cast<int>(std::bit_floor(static_cast<unsigned>(count))) / 2, 1);
  return (count + step - 1) / step * step;
}

// A launch that holds `need`. Whatever does not change what is launched is as large as there is memory for.
AttentionSize LaunchFor(const AttentionSize& need, int rows, const AttentionSize& capacity) {
  const int sequences = TaskCapacity(need.sequences);
  return {.sequences = sequences,
          .rows = rows,
          .items = std::min(RoundUp(std::max(need.items, sequences)), capacity.items),
          .tail_items = std::min(RoundUp(need.tail_items), capacity.tail_items),
          .blocks = capacity.blocks,
          .partials = need.partials > 0 ? capacity.partials : 0};
}

}  // namespace

std::optional<GraphShape> GraphOf(const StepPlan& plan, const StepShape& step,
                                  const AttentionShape& attention, const AttentionSize& capacity) {
  if (step.rows > kMaxCapturedRows || step.tasks > kMaxCapturedRows) return std::nullopt;
  const AttentionSize first = SizeOf(attention, plan.first.sequences);
  AttentionSize draft;
  for (const PassPlan& pass : plan.draft_passes) {
    const AttentionSize size = SizeOf(attention, pass.sequences);
    draft.sequences = size.sequences;
    draft.rows = size.rows;
    draft.items = std::max(draft.items, size.items);
    draft.blocks = std::max(draft.blocks, size.blocks);
    draft.partials = std::max(draft.partials, size.partials);
  }
  GraphShape graph{.step = step, .first = LaunchFor(first, step.rows, capacity), .draft = {}};
  if (!capacity.Holds(graph.first) || !graph.first.Holds(first)) return std::nullopt;
  if (plan.draft_passes.empty()) return graph;
  graph.draft = LaunchFor(draft, step.tasks, capacity);
  if (!capacity.Holds(graph.draft) || !graph.draft.Holds(draft)) return std::nullopt;
  return graph;
}

}  // namespace outrider::cuda
