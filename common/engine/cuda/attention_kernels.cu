#include <cuda_bf16.h>

#include <cmath>
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variants.cuh>

#include "common/engine/cuda/attention_kernels.h"
#include "common/engine/cuda/attention_plan.h"
#include "common/engine/cuda/layer_rows.h"

namespace outrider::cuda {
namespace {

using Element = __nv_bfloat16;
using Params = flashinfer::BatchPrefillPagedParams<Element, Element, Element, int32_t>;
using FullAttention = flashinfer::DefaultAttention</*custom mask*/ false, /*sliding window*/ false,
                                                   /*logits soft cap*/ false, /*alibi*/ false>;

// Attention with a sliding window: a row attends to its last `window` positions. In FlashInfer's own variant,
// splits begin where the window of a tile's first row begins. The order of summation would then depend on the
// other rows, and the splits would not be those of the plan. In this variant the splits stay in place, and
// the kernel sees no window. Scores outside the window become those of masked positions, FlashInfer's finite
// -inf. What a warp adds up before it reaches the window is later multiplied by 0. A split that lies before
// the window yields zeros, with a sum that MergePartials weighs with 0.
//
// Splits before the window are computed all the same: the layers share a plan, and some may not slide.
struct WindowAttention : FullAttention {
  uint32_t window;

  __device__ __host__ WindowAttention(const Params& params, uint32_t sequence, uint8_t* shared)
      : FullAttention(params, sequence, shared), window(static_cast<uint32_t>(params.window_left) + 1) {
    window_left = kv_len;
  }

  // The row's position is kv_len - qo_len + qo_idx.
  REGISTER_LOGITS_TRANSFORM(params, logits, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    return kv_idx + window + qo_len > kv_len + qo_idx ? logits : -flashinfer::math::inf;
  })
};

// One warp over the queries and four over the positions, which take 128 positions at a time. FlashInfer's
// dispatcher would choose this number by the GPU's shared memory. Here it is fixed, because it determines the
// order of summation.
constexpr uint32_t kWarpsOverPositions = 4;
constexpr uint32_t kPositionsOfWarp = 2;  // in units of 16
static_assert(kSplit % (kWarpsOverPositions * kPositionsOfWarp * 16) == 0);

template <uint32_t kHeadDim, class Variant>
using Traits = flashinfer::KernelTraits<flashinfer::MaskMode::kCausal, kQueryTile, /*NUM_MMA_Q=*/1,
                                        kPositionsOfWarp, kHeadDim / 16, kHeadDim / 16, /*NUM_WARPS_Q=*/1,
                                        kWarpsOverPositions, flashinfer::PosEncodingMode::kNone, Element,
                                        Element, Element, float, int32_t, Variant>;
static_assert(!Traits<64, FullAttention>::IsInvalid() && !Traits<128, FullAttention>::IsInvalid());

template <uint32_t kHeadDim, class Variant>
constexpr auto* kKernel = flashinfer::BatchPrefillWithPagedKVCacheKernel<Traits<kHeadDim, Variant>, Params>;
template <uint32_t kHeadDim, class Variant>
constexpr size_t kSharedBytes = sizeof(typename Traits<kHeadDim, Variant>::SharedStoragePaged);

constexpr int kMergeThreads = 128;

__global__ void Merge(const uint16_t* partials, const float* sums, const int32_t* row_partial,
                      const int32_t* row_splits, int heads, int head_dim, uint16_t* out) {
  const int column = static_cast<int>(blockIdx.y * kMergeThreads + threadIdx.x) * kMergeElements;
  if (column >= heads * head_dim) return;
  MergePartials(partials, sums, row_partial, row_splits, heads, head_dim, blockIdx.x, column, out);
}

// FlashInfer's structs have mutable pointers to data that it only reads.
Element* Elements(const void* data) { return static_cast<Element*>(const_cast<void*>(data)); }

// The blocks have `block_size` slots and begin `block_stride` elements apart.
Params MakeParams(const AttentionArguments& a, const AttentionItems& items, int block_size,
                  int64_t block_stride) {
  const int64_t strides[] = {block_stride, int64_t{a.block_size} * a.head_dim, a.head_dim};
  const flashinfer::paged_kv_t<Element, int32_t> cache(
      a.kv_heads, block_size, a.head_dim, items.sequences, flashinfer::QKVLayout::kHND, Elements(a.keys),
      Elements(a.values), strides, a.blocks, items.block_start, items.last_length);
  Params params(
      Elements(a.queries), cache, /*maybe_custom_mask=*/nullptr, items.query_start,
      /*maybe_mask_indptr=*/nullptr, /*maybe_q_rope_offset=*/nullptr, Elements(a.merge ? a.partials : a.out),
      a.merge ? a.partial_sums : nullptr, /*maybe_alibi_slopes=*/nullptr, a.query_heads,
      static_cast<int32_t>(a.query_stride), a.head_dim, /*window_left=*/a.window - 1, /*logits_soft_cap=*/0,
      /*sm_scale=*/1 / std::sqrt(static_cast<float>(a.head_dim)), /*rope_scale=*/1, /*rope_theta=*/1);
  params.request_indices = items.sequence;
  params.qo_tile_indices = items.tile;
  params.kv_tile_indices = items.split;
  params.o_indptr = items.output_start;
  params.block_valid_mask = items.valid;
  params.kv_chunk_size_ptr = a.split_size;
  params.padded_batch_size = items.count;
  params.partition_kv = a.merge;
  return params;
}

template <uint32_t kHeadDim, class Variant>
cudaError_t LaunchItems(const AttentionArguments& a, const AttentionItems& items, int block_size,
                        int64_t block_stride, cudaStream_t stream) {
  if (items.count == 0) return cudaSuccess;
  const dim3 blocks(items.count, 1, a.kv_heads), threads(32, 1, kWarpsOverPositions);
  kKernel<kHeadDim, Variant><<<blocks, threads, kSharedBytes<kHeadDim, Variant>, stream>>>(
      MakeParams(a, items, block_size, block_stride));
  return cudaGetLastError();
}

template <uint32_t kHeadDim, class Variant>
cudaError_t LaunchVariant(const AttentionArguments& a, cudaStream_t stream) {
  cudaError_t error = LaunchItems<kHeadDim, Variant>(a, a.items, a.block_size, a.block_stride, stream);
  if (error == cudaSuccess) {
    error = LaunchItems<kHeadDim, Variant>(a, a.tail_items, /*block_size=*/1, a.head_dim, stream);
  }
  if (error != cudaSuccess || !a.merge) return error;
  const int width = a.query_heads * a.head_dim, block = kMergeThreads * kMergeElements;
  Merge<<<dim3(a.rows, (width + block - 1) / block), kMergeThreads, 0, stream>>>(
      static_cast<const uint16_t*>(a.partials), a.partial_sums, a.row_partial, a.row_splits, a.query_heads,
      a.head_dim, static_cast<uint16_t*>(a.out));
  return cudaGetLastError();
}

template <uint32_t kHeadDim>
cudaError_t Launch(const AttentionArguments& a, cudaStream_t stream) {
  return a.window > 0 ? LaunchVariant<kHeadDim, WindowAttention>(a, stream)
                      : LaunchVariant<kHeadDim, FullAttention>(a, stream);
}

template <uint32_t kHeadDim, class Variant>
cudaError_t PrepareVariant() {
  return cudaFuncSetAttribute(kKernel<kHeadDim, Variant>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              kSharedBytes<kHeadDim, Variant>);
}

template <uint32_t kHeadDim>
cudaError_t Prepare() {
  const cudaError_t error = PrepareVariant<kHeadDim, FullAttention>();
  return error == cudaSuccess ? PrepareVariant<kHeadDim, WindowAttention>() : error;
}

}  // namespace

cudaError_t PrepareAttention(int head_dim) {
  if (head_dim == 64) return Prepare<64>();
  return head_dim == 128 ? Prepare<128>() : cudaErrorNotSupported;
}

cudaError_t LaunchAttention(const AttentionArguments& arguments, cudaStream_t stream) {
  return arguments.head_dim == 64 ? Launch<64>(arguments, stream) : Launch<128>(arguments, stream);
}

}  // namespace outrider::cuda
