// Causal attention of a ragged batch, trees included, over the paged KV cache.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/cuda/attention_plan.h"
#include "common/engine/cuda/device_memory.h"

namespace outrider::cuda {

// The operands of one layer: bfloat16, aligned to 16 bytes; strides are in elements and multiples of 8.
struct AttentionOperands {
  const void* queries = nullptr;  // [query_heads, head_dim] of row r begins at r * query_stride
  int64_t query_stride = 0;
  // Block b begins at b * AttentionShape::block_stride: keys [kv_heads][block_size][head_dim], then values
  // likewise. The keys and values of the batch's own rows are already stored.
  const void* cache = nullptr;
  void* out = nullptr;  // [rows, query_heads * head_dim]
  int window = 0;       // how many positions a row attends to, its own included; 0: all
};

// Batch-invariant: a row's result depends, to the bit, only on its query and on the keys and values up to its
// position (with a window, within it), and not on the batch, on the size of the launch, or on where these
// keys and values are. So a node of a tree gets the result of its path as a chain (attention_plan.h).
//
// Has memory for several plans, so that the passes of one graph have a plan each. A batch is uploaded once
// and launched for every layer. Both calls only enqueue. A graph captures Launch and is replayed after
// uploads to the same plan, of any batch that its size holds. Not thread-safe.
class Attention {
 public:
  // For batches that `capacity` holds. INVALID_ARGUMENT for a shape without a kernel, RESOURCE_EXHAUSTED if
  // there is not enough memory.
  static absl::StatusOr<std::unique_ptr<Attention>> Create(const AttentionShape& shape,
                                                           const AttentionSize& capacity, int plans);

  // Plans a batch for launches of `size` and enqueues the copy of the plan to the device. An earlier upload
  // to the same plan must be complete. Errors are those of WritePlan; also INVALID_ARGUMENT if the capacity
  // does not hold `size`.
  absl::Status Upload(int plan, const AttentionSize& size, absl::Span<const AttentionSequence> batch,
                      cudaStream_t stream);

  // Computes one layer for the batch of a plan. `size` must be that of the upload.
  absl::Status Launch(int plan, const AttentionSize& size, const AttentionOperands& operands,
                      cudaStream_t stream);

  const AttentionShape& shape() const { return shape_; }
  const AttentionSize& capacity() const { return capacity_; }
  int plans() const { return plans_; }

 private:
  Attention(const AttentionShape& shape, const AttentionSize& capacity, int plans)
      : shape_(shape), capacity_(capacity), plans_(plans), plan_bytes_(PlanLayout(capacity).bytes) {}

  size_t Offset(int plan) const { return static_cast<size_t>(plan) * plan_bytes_; }

  const AttentionShape shape_;
  const AttentionSize capacity_;
  const int plans_;
  const size_t plan_bytes_;
  PinnedMemory host_plans_;
  DeviceMemory device_plans_;
  DeviceMemory partials_;
  DeviceMemory partial_sums_;
};

}  // namespace outrider::cuda
