#include "common/engine/cuda/layer_kernels.h"

namespace outrider::cuda {
namespace {

// Threads of the block that works on one row. Fixed, because the order of a sum depends on it.
constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr float kLargestFp8 = 448;

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Combines `value` of all threads of the block in a fixed order and returns the result to all of them. Ends
// with a barrier, so that it can be called again.
template <class Combine>
__device__ float Reduce(float value, Combine combine) {
  __shared__ float warps[kThreads / kWarp];
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  float all = warps[0];
  for (int i = 1; i < kThreads / kWarp; ++i) all = combine(all, warps[i]);
  __syncthreads();
  return all;
}

__device__ float At(const Product& product, int64_t row, int column, int columns) {
  const float y = product.y[row * columns + column];
  return product.row_scales == nullptr ? y : y * product.row_scales[row] * product.column_scales[column];
}

// Writes a row of an operand. A thread calls value(c) for its own columns only, twice for fp8.
template <class Value>
__device__ void WriteOperand(const OperandRows& out, int64_t row, int columns, Value value) {
  if (out.row_scales == nullptr) {
    __nv_bfloat16* to = static_cast<__nv_bfloat16*>(out.data) + row * columns;
    for (int c = threadIdx.x; c < columns; c += kThreads) to[c] = __float2bfloat16(value(c));
    return;
  }
  float largest = 0;
  for (int c = threadIdx.x; c < columns; c += kThreads) largest = fmaxf(largest, fabsf(value(c)));
  largest = Reduce(largest, Max());
  const float scale = largest > 0 ? largest / kLargestFp8 : 1;
  const float inverse = 1 / scale;
  __nv_fp8_storage_t* to = static_cast<__nv_fp8_storage_t*>(out.data) + row * columns;
  for (int c = threadIdx.x; c < columns; c += kThreads) {
    to[c] = __nv_cvt_float_to_fp8(value(c) * inverse, __NV_SATFINITE, __NV_E4M3);
  }
  if (threadIdx.x == 0) out.row_scales[row] = scale;
}

__global__ void Embed(const int32_t* tokens, const __nv_bfloat16* table, float* hidden, int columns) {
  const int64_t row = blockIdx.x;
  const __nv_bfloat16* from = table + int64_t{tokens[row]} * columns;
  for (int c = threadIdx.x; c < columns; c += kThreads) hidden[row * columns + c] = __bfloat162float(from[c]);
}

// `sum` [columns] is dynamic shared memory.
__global__ void AddNorm(const int32_t* indices, Product product, const float* hidden_in, float* hidden_out,
                        const float* weight, float epsilon, OperandRows out, int columns) {
  extern __shared__ float sum[];
  const int64_t row = blockIdx.x;
  const int64_t from = indices == nullptr ? row : indices[row];
  float squares = 0;
  for (int c = threadIdx.x; c < columns; c += kThreads) {
    float value = hidden_in[from * columns + c];
    if (product.y != nullptr) value += At(product, from, c, columns);
    if (hidden_out != nullptr) hidden_out[row * columns + c] = value;
    sum[c] = value;
    squares += value * value;
  }
  const float factor = rsqrtf(Reduce(squares, Add()) / static_cast<float>(columns) + epsilon);
  WriteOperand(out, row, columns, [&](int c) { return sum[c] * factor * weight[c]; });
}

// The sum over the block's threads, at most 64, in a fixed order. All of them get it.
__device__ float SumOverHead(float x) {
  __shared__ float sums[64];
  sums[threadIdx.x] = x;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < blockDim.x; ++i) sum += sums[i];
  return sum;
}

// One block per row and head; heads are numbered queries, keys, values. A thread is a pair of a head's dimensions.
__global__ void RotateAndStore(Product qkv, HeadFinish finish, const RowPlace* places, const float* cosines,
                               const float* sines, HeadShape shape, __nv_bfloat16* queries, KvLayerView kv) {
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y;
  const int dim = shape.head_dim;
  const int half = dim / 2;
  const int columns = (shape.heads + 2 * shape.kv_heads) * dim;
  const RowPlace place = places[row];
  const int kv_head = (head - shape.heads) % shape.kv_heads;
  const bool is_value = head >= shape.heads + shape.kv_heads;
  __nv_bfloat16* to;
  if (head < shape.heads) {
    to = queries + (row * shape.heads + head) * dim;
  } else {
    const int64_t part = int64_t{shape.kv_heads} * kv.block_size * dim;
    to = kv.base + place.block * kv.block_stride + (is_value ? part : 0) +
         (int64_t{kv_head} * kv.block_size + place.slot) * dim;
  }
  const int i = threadIdx.x;
  float low = At(qkv, row, head * dim + i, columns);
  float high = At(qkv, row, head * dim + half + i, columns);
  if (finish.bias != nullptr) {
    low += finish.bias[head * dim + i];
    high += finish.bias[head * dim + half + i];
  }
  if (finish.query_norm != nullptr && !is_value) {
    const float* norm = head < shape.heads ? finish.query_norm : finish.key_norm;
    const float scale = 1 / sqrtf(SumOverHead(low * low + high * high) / dim + finish.epsilon);
    low = low * scale * norm[i];
    high = high * scale * norm[half + i];
  }
  const float cosine = is_value ? 1 : cosines[int64_t{place.position} * half + i];
  const float sine = is_value ? 0 : sines[int64_t{place.position} * half + i];
  to[i] = __float2bfloat16(low * cosine - high * sine);
  to[half + i] = __float2bfloat16(high * cosine + low * sine);
}

__global__ void Quantize(const __nv_bfloat16* x, OperandRows out, int columns) {
  const int64_t row = blockIdx.x;
  WriteOperand(out, row, columns, [&](int c) { return __bfloat162float(x[row * columns + c]); });
}

__global__ void SiluMul(Product gate_up, OperandRows out, int columns) {
  const int64_t row = blockIdx.x;
  WriteOperand(out, row, columns, [&](int c) {
    const float gate = At(gate_up, row, c, 2 * columns);
    return gate / (1 + __expf(-gate)) * At(gate_up, row, columns + c, 2 * columns);
  });
}

__global__ void Scale(Product product, float* y, int columns) {
  const int64_t row = blockIdx.y;
  const int column = blockIdx.x * kThreads + threadIdx.x;
  if (column < columns) y[row * columns + column] = At(product, row, column, columns);
}

unsigned Unsigned(int value) { return static_cast<unsigned>(value); }

}  // namespace

void LaunchEmbed(const int32_t* tokens, const __nv_bfloat16* table, float* hidden, int rows, int columns,
                 cudaStream_t stream) {
  Embed<<<Unsigned(rows), kThreads, 0, stream>>>(tokens, table, hidden, columns);
}

void LaunchAddNorm(const Product& product, float* hidden, const float* weight, float epsilon,
                   const OperandRows& out, int rows, int columns, cudaStream_t stream) {
  AddNorm<<<Unsigned(rows), kThreads, sizeof(float) * static_cast<size_t>(columns), stream>>>(
      nullptr, product, hidden, hidden, weight, epsilon, out, columns);
}

void LaunchAddNormOf(const int32_t* indices, const Product& product, const float* hidden, const float* weight,
                     float epsilon, const OperandRows& out, int rows, int columns, cudaStream_t stream) {
  AddNorm<<<Unsigned(rows), kThreads, sizeof(float) * static_cast<size_t>(columns), stream>>>(
      indices, product, hidden, nullptr, weight, epsilon, out, columns);
}

void LaunchRotateAndStore(const Product& qkv, const HeadFinish& finish, const RowPlace* places,
                          const float* cosines, const float* sines, const HeadShape& shape,
                          __nv_bfloat16* queries, const KvLayerView& kv, int rows, cudaStream_t stream) {
  const dim3 grid(Unsigned(rows), Unsigned(shape.heads + 2 * shape.kv_heads));
  RotateAndStore<<<grid, Unsigned(shape.head_dim / 2), 0, stream>>>(qkv, finish, places, cosines,
                                                                    sines, shape, queries, kv);
}

void LaunchQuantize(const __nv_bfloat16* x, const OperandRows& out, int rows, int columns,
                    cudaStream_t stream) {
  Quantize<<<Unsigned(rows), kThreads, 0, stream>>>(x, out, columns);
}

void LaunchSiluMul(const Product& gate_up, const OperandRows& out, int rows, int columns,
                   cudaStream_t stream) {
  SiluMul<<<Unsigned(rows), kThreads, 0, stream>>>(gate_up, out, columns);
}

void LaunchScale(const Product& product, float* y, int rows, int columns, cudaStream_t stream) {
  const dim3 grid(Unsigned((columns + kThreads - 1) / kThreads), Unsigned(rows));
  Scale<<<grid, kThreads, 0, stream>>>(product, y, columns);
}

void LaunchQuantizeWeights(const __nv_bfloat16* from, __nv_fp8_storage_t* to, float* scales, int n, int k,
                           cudaStream_t stream) {
  Quantize<<<Unsigned(n), kThreads, 0, stream>>>(from, {to, scales}, k);
}

}  // namespace outrider::cuda
