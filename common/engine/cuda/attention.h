// Causal attention of a ragged batch, trees included, over the paged KV cache.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

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
// Each pass of a step has a plan, which is launched for every layer. A plan is named by where it begins: the
// plans of a step lie one behind the other, so that one copy uploads them all. A graph captures Launch and is
// replayed after uploads of plans of the same sizes in the same order, of any batches that these hold. Not
// thread-safe.
class Attention {
 public:
  // For batches that `capacity` holds, with room for `plans` plans of that size. INVALID_ARGUMENT for a shape
  // without a kernel, RESOURCE_EXHAUSTED if there is not enough memory.
  static absl::StatusOr<std::unique_ptr<Attention>> Create(const AttentionShape& shape,
                                                           const AttentionSize& capacity, int plans);

  // How far a plan is from the next one.
  static size_t PlanBytes(const AttentionSize& size) { return PlanLayout(size).bytes; }

  // Forgets all plans: the next one begins at 0. The stream must be done with them.
  void Clear() { uploaded_ = used_ = end_ = 0; }
  // Whether there is room for so many bytes of plans more.
  bool HasRoom(size_t bytes) const { return end_ + bytes <= host_plans_.bytes(); }
  // Plans a batch for launches of `size`, behind the plans that there are. Errors are those of WritePlan;
  // also INVALID_ARGUMENT if the capacity does not hold `size`, and RESOURCE_EXHAUSTED without room.
  absl::StatusOr<size_t> Add(const AttentionSize& size, absl::Span<const AttentionSequence> batch);
  // Enqueues a copy to the device of all plans since the last Upload or Clear.
  absl::Status Upload(cudaStream_t stream);

  // Enqueues one layer for the batch of a plan that was uploaded, whose size this is.
  absl::Status Launch(size_t plan, const AttentionSize& size, const AttentionOperands& operands,
                      cudaStream_t stream);

  const AttentionShape& shape() const { return shape_; }
  const AttentionSize& capacity() const { return capacity_; }

 private:
  Attention(const AttentionShape& shape, const AttentionSize& capacity)
      : shape_(shape), capacity_(capacity) {}

  const AttentionShape shape_;
  const AttentionSize capacity_;
  PinnedMemory host_plans_;
  DeviceMemory device_plans_;
  size_t uploaded_ = 0;  // where the plans end that are on the device
  size_t used_ = 0;      // where the last plan's entries end
  size_t end_ = 0;       // where the next plan begins
  DeviceMemory partials_;
  DeviceMemory partial_sums_;
};

}  // namespace outrider::cuda
