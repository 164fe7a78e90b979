// The kernels of paged attention, launched for a plan that is on the device. Contracts are in attention.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace outrider::cuda {

struct AttentionArguments {
  int query_heads;
  int kv_heads;
  int head_dim;
  int block_size;
  // The launch's size.
  int sequences;
  int rows;
  int items;
  bool merge;  // whether it has partial results
  // The plan (PlanLayout), on the device. The pointers are to what kernels only read.
  int32_t* split;
  int32_t* query_start;
  int32_t* output_start;
  int32_t* block_start;
  int32_t* last_length;
  int32_t* item_sequence;
  int32_t* item_tile;
  int32_t* item_split;
  int32_t* row_partial;
  int32_t* row_splits;
  bool* valid;
  int32_t* blocks;
  // The layer's operands, bfloat16, strides in elements.
  const void* queries;
  int64_t query_stride;
  const void* keys;
  const void* values;
  int64_t block_stride;
  void* out;
  // Partial results, bfloat16 [partials, query_heads, head_dim], and the logarithms (to base 2) of the sums
  // of their weights, [partials, query_heads].
  void* partials;
  float* partial_sums;
};

// Once for a device, before the first launch of a head_dim. cudaErrorNotSupported for one that is neither 64
// nor 128.
cudaError_t PrepareAttention(int head_dim);

cudaError_t LaunchAttention(const AttentionArguments& arguments, cudaStream_t stream);

}  // namespace outrider::cuda
