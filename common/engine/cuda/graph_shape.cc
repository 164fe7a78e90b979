#include "common/engine/cuda/graph_shape.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace outrider::cuda {
namespace {

// All rows of a graph fit if their sequences are of this length, or nodes of trees of this depth.
constexpr int kShortLength = 1024;
constexpr int kTreeDepth = 64;

// 1, 2, 3, 4, 6, 8, 12, 16, ...
int RoundUp(int count) {
  const int step = std::max(static_cast<int>(std::bit_floor(static_cast<unsigned>(count))) / 2, 1);
  return (count + step - 1) / step * step;
}

// A launch that holds `need`. Sizes that do not change the launch are as large as there is memory for.
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

AttentionShape AttentionShapeOf(const DecoderSpec& spec, int block_size) {
  return {.query_heads = spec.heads,
          .kv_heads = spec.kv_heads,
          .head_dim = spec.head_dim,
          .block_size = block_size,
          .block_stride = int64_t{2} * spec.layers * spec.kv_heads * block_size * spec.head_dim,
          .slides = std::find(spec.slides.begin(), spec.slides.end(), true) != spec.slides.end()};
}

AttentionSize AttentionCapacity(const AttentionShape& shape, int max_rows, int max_positions) {
  const int length = std::max(kSplit, static_cast<int>(std::bit_ceil(static_cast<unsigned>(max_positions))));
  const AttentionSize longest = LargestSize(shape, kLongRows, kLongRows, length);
  const AttentionSize most =
      LargestSize(shape, kMaxCapturedRows, kMaxCapturedRows, std::min(length, kShortLength));
  const AttentionSize tails = LargestTails(shape, kMaxCapturedRows, kTreeDepth);
  return {.sequences = max_rows,
          .rows = max_rows,
          .items = std::max(longest.items, most.items),
          .tail_items = tails.tail_items,
          .blocks = std::max(longest.blocks, most.blocks) + tails.blocks,
          .partials = length > kSplit ? std::max({longest.partials, most.partials, max_rows}) : 0};
}

int MostBlocks(const AttentionShape& shape) {
  const int64_t heads = shape.block_stride / shape.head_dim;
  return static_cast<int>(std::numeric_limits<int32_t>::max() / heads) - 1;
}

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
