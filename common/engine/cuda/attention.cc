#include "common/engine/cuda/attention.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/engine/cuda/attention_kernels.h"
#include "common/spec/status.h"

namespace outrider::cuda {

absl::StatusOr<std::unique_ptr<Attention>> Attention::Create(const AttentionShape& shape,
                                                             const AttentionSize& capacity, int plans) {
  if (shape.kv_heads < 1 || shape.query_heads % shape.kv_heads != 0 || shape.block_size < 1 ||
      (shape.head_dim != 64 && shape.head_dim != 128)) {
    return Invalid("attention on a GPU takes heads of 64 or 128, not ", shape.query_heads, " query and ",
                   shape.kv_heads, " KV heads of ", shape.head_dim);
  }
  if (shape.block_stride % shape.head_dim != 0 || shape.block_stride > std::numeric_limits<uint32_t>::max()) {
    return Invalid("attention: a block takes ", shape.block_stride, " elements of the cache");
  }
  // FlashInfer counts the elements of partial results in 32 bits.
  const size_t width = static_cast<size_t>(shape.query_heads) * static_cast<size_t>(shape.head_dim);
  if (static_cast<size_t>(capacity.partials) * width > std::numeric_limits<uint32_t>::max()) {
    return Invalid("attention: ", capacity.partials, " partial results are too many");
  }
  OUTRIDER_TRY(ToStatus(PrepareAttention(shape.head_dim), "preparing attention"));
  std::unique_ptr<Attention> attention(new Attention(shape, capacity));
  const size_t plan_bytes = static_cast<size_t>(plans) * PlanBytes(capacity);
  const size_t partials = static_cast<size_t>(std::max(capacity.partials, 1));
  const size_t sums = partials * static_cast<size_t>(shape.query_heads);
  constexpr char kPlans[] = "plans of attention", kResults[] = "partial results of attention";
  attention->host_plans_ = OUTRIDER_TRY(PinnedMemory::Allocate(plan_bytes, kPlans));
  attention->device_plans_ = OUTRIDER_TRY(DeviceMemory::Allocate(plan_bytes, kPlans));
  attention->partials_ = OUTRIDER_TRY(DeviceMemory::Allocate(partials * width * sizeof(uint16_t), kResults));
  attention->partial_sums_ = OUTRIDER_TRY(DeviceMemory::Allocate(sums * sizeof(float), kResults));
  return attention;
}

absl::StatusOr<size_t> Attention::Add(const AttentionSize& size, absl::Span<const AttentionSequence> batch) {
  if (!capacity_.Holds(size)) return Invalid("attention: a launch larger than its memory");
  if (!HasRoom(PlanBytes(size))) return absl::ResourceExhaustedError("attention: no room for another plan");
  const size_t plan = end_;
  const size_t bytes = OUTRIDER_TRY(WritePlan(shape_, size, batch, host_plans_.data() + plan));
  used_ = plan + bytes;
  end_ = plan + PlanBytes(size);
  return plan;
}

absl::Status Attention::Upload(cudaStream_t stream) {
  const size_t from = std::exchange(uploaded_, end_);
  if (from == end_) return absl::OkStatus();
  return ToStatus(cudaMemcpyAsync(device_plans_.data() + from, host_plans_.data() + from, used_ - from,
                                  cudaMemcpyHostToDevice, stream),
                  "copying plans of attention");
}

absl::Status Attention::Launch(size_t plan, const AttentionSize& size, const AttentionOperands& operands,
                               cudaStream_t stream) {
  char* const data = device_plans_.data() + plan;
  const PlanLayout layout(size);
  const auto ints = [data](size_t offset) { return reinterpret_cast<int32_t*>(data + offset); };
  const int64_t half_block = int64_t{shape_.kv_heads} * shape_.block_size * shape_.head_dim;
  const auto items = [&](int count, int first_item, int sequences, int first_sequence) {
    return AttentionItems{.count = count,
                          .sequence = ints(layout.item_sequence) + first_item,
                          .tile = ints(layout.item_tile) + first_item,
                          .split = ints(layout.item_split) + first_item,
                          .valid = reinterpret_cast<bool*>(data + layout.valid) + first_item,
                          .sequences = sequences,
                          .query_start = ints(layout.query_start) + first_sequence,
                          .output_start = ints(layout.output_start) + first_sequence,
                          .block_start = ints(layout.block_start) + first_sequence,
                          .last_length = ints(layout.last_length) + first_sequence};
  };
  const AttentionArguments arguments = {
      .query_heads = shape_.query_heads,
      .kv_heads = shape_.kv_heads,
      .head_dim = shape_.head_dim,
      .block_size = shape_.block_size,
      .rows = size.rows,
      .merge = size.partials > 0,
      .split_size = ints(layout.split_size),
      .items = items(size.items, 0, size.sequences, 0),
      .tail_items = items(size.tail_items, size.items, size.rows, layout.tails),
      .row_partial = ints(layout.row_partial),
      .row_splits = ints(layout.row_splits),
      .blocks = ints(layout.blocks),
      .queries = operands.queries,
      .query_stride = operands.query_stride,
      .keys = operands.cache,
      .values = static_cast<const uint16_t*>(operands.cache) + half_block,
      .block_stride = shape_.block_stride,
      .out = operands.out,
      .window = operands.window,
      .partials = partials_.data(),
      .partial_sums = partial_sums_.as<float>(),
  };
  return ToStatus(LaunchAttention(arguments, stream), "launching attention");
}

}  // namespace outrider::cuda
