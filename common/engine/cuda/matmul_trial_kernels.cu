#include "common/engine/cuda/matmul_trial_kernels.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 1024;

// A bijection of 64-bit numbers that leaves no pattern (the finaliser of splitmix64).
__device__ uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// Numbers below 2 of either sign, of many magnitudes.
__device__ uint16_t MadeUpBFloat16(uint64_t bits) {
  const uint16_t exponent = 120 + (bits >> 8) % 8;  // 127: [1, 2)
  return static_cast<uint16_t>((bits & 1) << 15 | exponent << 7 | (bits >> 1 & 0x7f));
}
// All finite numbers: within a few powers of two, sums of fp8 are exact in float32 in any order.
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

}  // namespace

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
