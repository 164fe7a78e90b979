// The kernels of a layer apart from matrix products and attention, and those that try out products
// (matmul_trial.h).
//
// All pointers are to device memory unless stated otherwise. Every function enqueues one kernel and can be
// captured in a graph. A row's result depends only on that row, and is computed in a fixed order of
// operations by the functions of layer_rows.h.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "common/engine/cuda/layer_rows.h"

namespace outrider::cuda {

// hidden[r, :] = table[tokens[r], :], for table [vocab, columns].
void LaunchEmbed(const int32_t* tokens, const __nv_bfloat16* table, float* hidden, int rows, int columns,
                 cudaStream_t stream);

// The shared memory that a thread block has without asking for more.
inline constexpr size_t kSharedBytes = 48 * 1024;
// The shared memory of a row's two reductions, a sum and a maximum: one float for each of 8 warps.
inline constexpr size_t kReductionBytes = 2 * 8 * sizeof(float);
// The maximum number of columns of the two functions below, which also keep a row in shared memory.
inline constexpr int kMaxNormed = (kSharedBytes - kReductionBytes) / sizeof(float);

// hidden[r, :] += product[r, :], unless product.y is null; then out[r, :] = hidden[r, :] /
// sqrt(mean(hidden^2) + epsilon) * weight.
void LaunchAddNorm(const Product& product, float* hidden, const float* weight, float epsilon,
                   const OperandRows& out, int rows, int columns, cudaStream_t stream);

// The same for the rows `indices` only ([rows]; null: the first ones): out[i, :] comes from row indices[i].
// Does not change hidden.
void LaunchAddNormOf(const int32_t* indices, const Product& product, const float* hidden, const float* weight,
                     float epsilon, const OperandRows& out, int rows, int columns, cudaStream_t stream);

// Applies `finish`, then rotates the queries and keys of qkv [rows, (heads + 2 kv_heads) * head_dim] by their
// positions, pairing the halves of a head. Writes the queries to `queries` [rows, heads, head_dim], and the
// keys and values to their places in the cache. cosines and sines are [positions, head_dim / 2].
void LaunchRotateAndStore(const Product& qkv, const HeadFinish& finish, const RowPlace* places,
                          const float* cosines, const float* sines, const HeadShape& shape,
                          __nv_bfloat16* queries, const KvLayerView& kv, int rows, cudaStream_t stream);

// out = x, [rows, columns], as fp8 with a scale for each row, so that the largest magnitude becomes e4m3's
// maximum, 448.
void LaunchQuantize(const __nv_bfloat16* x, const OperandRows& out, int rows, int columns,
                    cudaStream_t stream);

// out[r, c] = silu(gate[r, c]) * up[r, c]: gate is the first `columns` columns of the product, up the rest.
void LaunchSiluMul(const Product& gate_up, const OperandRows& out, int rows, int columns,
                   cudaStream_t stream);

// Applies the product's scales, in place: for the logits of an fp8 head.
void LaunchScale(const Product& product, float* y, int rows, int columns, cudaStream_t stream);

// Fills `to` [count] with finite numbers of either sign and of many magnitudes.
cudaError_t LaunchFill(Operand operand, void* to, size_t count, uint64_t seed, cudaStream_t stream);

// Sets *differs to 1 if the bits of a and b, [count] each, are not the same; else leaves it.
cudaError_t LaunchCompare(const float* a, const float* b, size_t count, int* differs, cudaStream_t stream);

}  // namespace outrider::cuda
