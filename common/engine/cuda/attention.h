// Causal attention of a batch of queries over a paged cache of keys and values.
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

// One layer's operands, all bfloat16, aligned to 16 bytes, with strides in elements that are multiples of 8.
struct AttentionOperands {
  const void* queries = nullptr;  // row r's, [query_heads, head_dim], begin at r * query_stride
  int64_t query_stride = 0;
  // Block b's begin at b * block_stride: keys [kv_heads][block_size][head_dim], then values likewise. Keys
  // and values of the batch's own rows are in it already.
  const void* cache = nullptr;
  int64_t block_stride = 0;  // below 2^32
  void* out = nullptr;       // [rows, query_heads * head_dim]
};

// What a row yields depends on its query and on the keys and values up to its position only, to the bit: not
// on the batch, nor on the launch's size (attention_plan.h).
//
// Holds room for several plans, so that steps that one graph runs one after another have a plan each. A batch
// is uploaded once and launched for every layer. Both calls only enqueue: a graph captures Launch and is
// replayed after uploads to the same plan, of any batch that its size holds. Not thread-safe.
class Attention {
 public:
  // For batches that `capacity` holds. INVALID_ARGUMENT for a shape that there is no kernel for,
  // RESOURCE_EXHAUSTED where memory cannot be had.
  static absl::StatusOr<std::unique_ptr<Attention>> Create(const AttentionShape& shape,
                                                           const AttentionSize& capacity, int plans);

  // Plans a batch for launches of `size` and has the plan copied to the device. An earlier upload to the same
  // plan must have been carried out. As WritePlan; also INVALID_ARGUMENT for a size that the capacity does
  // not hold.
  absl::Status Upload(int plan, const AttentionSize& size, absl::Span<const AttentionSequence> batch,
                      cudaStream_t stream);

  // Computes the batch of a plan for one layer. `size` is that of its upload.
  absl::Status Launch(int plan, const AttentionSize& size, const AttentionOperands& operands,
                      cudaStream_t stream);

  const AttentionShape& shape() const { return shape_; }
  const AttentionSize& capacity() const { return capacity_; }

 private:
  Attention(const AttentionShape& shape, const AttentionSize& capacity)
      : shape_(shape), capacity_(capacity), plan_bytes_(PlanLayout(capacity).bytes) {}

  size_t Offset(int plan) const { return static_cast<size_t>(plan) * plan_bytes_; }

  const AttentionShape shape_;
  const AttentionSize capacity_;
  const size_t plan_bytes_;
  PinnedMemory host_plans_;
  DeviceMemory device_plans_;
  DeviceMemory partials_;
  DeviceMemory partial_sums_;
};

}  // namespace outrider::cuda
