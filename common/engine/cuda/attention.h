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

// Batch-invariant: a row's result depends, bit for bit, only on its query and on the keys and values up to
// its position (with a window, within it), and not on the batch, the size of the launch, or where the keys
// and values are stored. So a tree node gets the same result as if its path were a chain (attention_plan.h).
//
// Each pass of a step has a plan, which is launched for every layer. A plan is named by its byte offset: the
// plans of a step are adjacent, so that one copy uploads them all. A graph captures Launch. It can be
// replayed after plans of the same sizes have been uploaded in the same order, for any batches that these
// sizes hold. Not thread-safe.
class Attention {
 public:
  // Takes batches that `capacity` holds, and has room for `plans` plans of that size. INVALID_ARGUMENT for a
  // shape without a kernel, RESOURCE_EXHAUSTED if there is not enough memory.
  static absl::StatusOr<std::unique_ptr<Attention>> Create(const AttentionShape& shape,
                                                           const AttentionSize& capacity, int plans);

  // The distance from a plan of this size to the next plan, in bytes.
  static size_t PlanBytes(const AttentionSize& size) { return PlanLayout(size).bytes; }

  // Forgets all plans: the next one begins at 0. The stream must be done with them.
  void Clear() { uploaded_ = used_ = end_ = 0; }
  // Whether there is room for plans of `bytes` more bytes.
  bool HasRoom(size_t bytes) const { return end_ + bytes <= host_plans_.bytes(); }
  // Adds the plan of a batch for launches of `size` and returns its offset. Errors are those of WritePlan;
  // also INVALID_ARGUMENT if the capacity does not hold `size`, and RESOURCE_EXHAUSTED if there is no room.
  absl::StatusOr<size_t> Add(const AttentionSize& size, absl::Span<const AttentionSequence> batch);
  // Enqueues a copy to the device of all plans since the last Upload or Clear.
  absl::Status Upload(cudaStream_t stream);

  // Enqueues the attention of one layer for the batch of an uploaded plan, which has this size.
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
  size_t uploaded_ = 0;  // where the uploaded plans end
  size_t used_ = 0;      // where the last plan's entries end
  size_t end_ = 0;       // where the next plan begins
  DeviceMemory partials_;
  DeviceMemory partial_sums_;
};

}  // namespace outrider::cuda
