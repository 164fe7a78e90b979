// The kernels of paged attention, for a plan in device memory. The contracts are in attention.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace outrider::cuda {

// The items of a launch and their sequences (PlanLayout), in device memory. Kernels only read them.
struct AttentionItems {
  int count;
  int32_t* sequence;
  int32_t* tile;
  int32_t* split;
  bool* valid;
  int sequences;
  int32_t* query_start;
  int32_t* output_start;
  int32_t* block_start;
  int32_t* last_length;
};

struct AttentionArguments {
  int query_heads;
  int kv_heads;
  int head_dim;
  int block_size;
  int rows;    // of the launch
  bool merge;  // whether the launch has partial results to merge
  // The plan in device memory.
  int32_t* split_size;
  AttentionItems items;       // their blocks have block_size slots
  AttentionItems tail_items;  // their blocks are single slots, head_dim elements apart
  int32_t* row_partial;
  int32_t* row_splits;
  int32_t* blocks;
  // The layer's operands, bfloat16, strides in elements.
  const void* queries;
  int64_t query_stride;
  const void* keys;
  const void* values;
  int64_t block_stride;
  void* out;
  int window;  // 0: none
  // Partial results, bfloat16 [partials, query_heads, head_dim], and the base-2 logarithms of the sums of
  // their weights, [partials, query_heads].
  void* partials;
  float* partial_sums;
};

// Call once per device and head_dim, before the first launch. cudaErrorNotSupported unless head_dim is 64 or
// 128.
cudaError_t PrepareAttention(int head_dim);

cudaError_t LaunchAttention(const AttentionArguments& arguments, cudaStream_t stream);

}  // namespace outrider::cuda
