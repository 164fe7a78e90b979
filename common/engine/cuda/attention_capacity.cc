#include "common/engine/cuda/attention_capacity.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "common/engine/cuda/step_plan.h"

namespace outrider::cuda {
namespace {

// All rows of a graph fit if their sequences are of this length, or nodes of trees of this depth.
constexpr int kShortLength = 1024;
constexpr int kTreeDepth = 64;

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

}  // namespace outrider::cuda
