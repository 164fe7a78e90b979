#include "common/engine/cuda/layer_kernels.h"

namespace outrider::cuda {
namespace {

// Threads of the block that works on one row. Fixed, because the order of a sum depends on it.
constexpr int kThreads = 256;
// Threads of a block that only finds a maximum, in any order. More threads have more reads in flight.
constexpr int kManyThreads = 1024;
constexpr int kWarp = 32;

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Larger {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// A thread block of whole warps, at most kMost threads.
template <int kMost>
class RowBlock {
 public:
  __device__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ int size() const { return static_cast<int>(blockDim.x); }
  __device__ float Sum(float value) const { return Reduce(value, Add()); }
  __device__ float Max(float value) const { return Reduce(value, Larger()); }

 private:
  // Ends with a barrier, so that it can be called again.
  template <class Combine>
  __device__ float Reduce(float value, Combine combine) const {
    __shared__ float warps[kMost / kWarp];
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
    if (rank() % kWarp == 0) warps[rank() / kWarp] = value;
    __syncthreads();
    float all = warps[0];
    for (int i = 1; i < size() / kWarp; ++i) all = combine(all, warps[i]);
    __syncthreads();
    return all;
  }
};

// All thread blocks with the same blockIdx.y, as one team.
struct GridRow {
  __device__ int rank() const { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }
  __device__ int size() const { return static_cast<int>(gridDim.x * blockDim.x); }
};

__global__ void Embed(const int32_t* tokens, const uint16_t* table, float* hidden, int columns) {
  EmbedRow(RowBlock<kThreads>(), blockIdx.x, tokens, table, hidden, columns);
}

// `values` has `columns` elements.
__global__ void AddNorm(const int32_t* indices, Product product, const float* hidden_in, float* hidden_out,
                        const float* weight, float epsilon, OperandRows out, int columns) {
  extern __shared__ float values[];
  AddNormRow(RowBlock<kThreads>(), blockIdx.x, indices, product, hidden_in, hidden_out, weight, epsilon, out,
             columns, values);
}

// One block per row and head.
__global__ void RotateAndStore(Product qkv, HeadFinish finish, const RowPlace* places, const float* cosines,
                               const float* sines, HeadShape shape, uint16_t* queries, KvLayerView kv) {
  RotateAndStoreHead(RowBlock<kThreads>(), blockIdx.x, static_cast<int>(blockIdx.y), qkv, finish, places,
                     cosines, sines, shape, queries, kv);
}

__global__ void Quantize(const uint16_t* x, OperandRows out, int columns) {
  QuantizeRow(RowBlock<kManyThreads>(), blockIdx.x, x, out, columns);
}

__global__ void SiluMul(Product gate_up, OperandRows out, int columns) {
  SiluMulRow(RowBlock<kManyThreads>(), blockIdx.x, gate_up, out, columns);
}

__global__ void SiluMulBFloat16(Product gate_up, OperandRows out, int columns) {
  SiluMulBFloat16Row(GridRow(), blockIdx.y, gate_up, out, columns);
}

__global__ void Scale(Product product, float* y, int columns) {
  ScaleRow(GridRow(), blockIdx.y, product, y, columns);
}

constexpr int kBlocks = 1024;  // of a kernel over all elements

// A bijection of 64-bit numbers that leaves no pattern (the finaliser of splitmix64).
__device__ uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// Numbers of either sign, with magnitudes from 2^-7 to below 2.
__device__ uint16_t MadeUpBFloat16(uint64_t bits) {
  const uint16_t exponent = 120 + (bits >> 8) % 8;  // 127: [1, 2)
  return static_cast<uint16_t>((bits & 1) << 15 | exponent << 7 | (bits >> 1 & 0x7f));
}
// Any finite number: if all were within a few powers of two, float32 sums of fp8 would be exact in any order.
__device__ uint8_t MadeUpFp8(uint64_t bits) {
  constexpr uint8_t kNan = 0x7f;
  const uint8_t magnitude = bits & 0x7f;
  return static_cast<uint8_t>((bits & 0x80) | (magnitude == kNan ? kNan - 1 : magnitude));
}

template <class Element, class MakeUp>
__device__ void FillWith(Element* to, size_t count, uint64_t seed, MakeUp make_up) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    to[i] = make_up(Mix(seed + i));
  }
}

__global__ void FillBFloat16(uint16_t* to, size_t count, uint64_t seed) {
  FillWith(to, count, seed, [](uint64_t bits) { return MadeUpBFloat16(bits); });
}
__global__ void FillFp8(uint8_t* to, size_t count, uint64_t seed) {
  FillWith(to, count, seed, [](uint64_t bits) { return MadeUpFp8(bits); });
}

__global__ void Compare(const uint32_t* a, const uint32_t* b, size_t count, int* differs) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    if (a[i] != b[i]) *differs = 1;
  }
}

const uint16_t* Bits(const __nv_bfloat16* x) { return reinterpret_cast<const uint16_t*>(x); }

unsigned Unsigned(int value) { return static_cast<unsigned>(value); }

// A grid with a thread for each element.
dim3 GridOf(int rows, int columns) { return {Unsigned((columns + kThreads - 1) / kThreads), Unsigned(rows)}; }

}  // namespace

void LaunchEmbed(const int32_t* tokens, const __nv_bfloat16* table, float* hidden, int rows, int columns,
                 cudaStream_t stream) {
  Embed<<<Unsigned(rows), kThreads, 0, stream>>>(tokens, Bits(table), hidden, columns);
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
  RotateAndStore<<<grid, Unsigned(shape.head_dim / 2), 0, stream>>>(
      qkv, finish, places, cosines, sines, shape, reinterpret_cast<uint16_t*>(queries), kv);
}

void LaunchQuantize(const __nv_bfloat16* x, const OperandRows& out, int rows, int columns,
                    cudaStream_t stream) {
  Quantize<<<Unsigned(rows), kManyThreads, 0, stream>>>(Bits(x), out, columns);
}

void LaunchSiluMul(const Product& gate_up, const OperandRows& out, int rows, int columns,
                   cudaStream_t stream) {
  if (out.row_scales == nullptr) {
    SiluMulBFloat16<<<GridOf(rows, columns), kThreads, 0, stream>>>(gate_up, out, columns);
  } else {
    SiluMul<<<Unsigned(rows), kManyThreads, 0, stream>>>(gate_up, out, columns);
  }
}

void LaunchScale(const Product& product, float* y, int rows, int columns, cudaStream_t stream) {
  Scale<<<GridOf(rows, columns), kThreads, 0, stream>>>(product, y, columns);
}

cudaError_t LaunchFill(Operand operand, void* to, size_t count, uint64_t seed, cudaStream_t stream) {
  if (operand == Operand::kFp8) {
    FillFp8<<<kBlocks, kThreads, 0, stream>>>(static_cast<uint8_t*>(to), count, seed);
  } else {
    FillBFloat16<<<kBlocks, kThreads, 0, stream>>>(static_cast<uint16_t*>(to), count, seed);
  }
  return cudaGetLastError();
}

cudaError_t LaunchCompare(const float* a, const float* b, size_t count, int* differs, cudaStream_t stream) {
  Compare<<<kBlocks, kThreads, 0, stream>>>(reinterpret_cast<const uint32_t*>(a),
                                            reinterpret_cast<const uint32_t*>(b), count, differs);
  return cudaGetLastError();
}

}  // namespace outrider::cuda
