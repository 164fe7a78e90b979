// The team of the device: a thread block. For nvcc only.
#pragma once

#include <cstdint>

#include "common/spec/team/team.h"

namespace outrider::cuda {

// A thread block of whole warps, at most team::kMaxCandidates threads.
class BlockTeam {
 public:
  __device__ explicit BlockTeam(team::TeamScratch* scratch) : scratch_(scratch) {}

  __device__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ int size() const { return static_cast<int>(blockDim.x); }
  __device__ team::TeamScratch& scratch() const { return *scratch_; }
  __device__ void Sync() const { __syncthreads(); }

  __device__ uint64_t Max(uint64_t value) const {
    value = MaxOfWarp(value);
    const int lane = rank() % 32;
    if (lane == 0) scratch_->partial[rank() / 32] = value;
    __syncthreads();
    value = MaxOfWarp(scratch_->partial[lane < size() / 32 ? lane : 0]);
    __syncthreads();
    return value;
  }

  __device__ uint64_t Add(uint64_t* cell, uint64_t n) const {
    return atomicAdd(reinterpret_cast<unsigned long long*>(cell), static_cast<unsigned long long>(n));
  }

 private:
  __device__ static uint64_t MaxOfWarp(uint64_t value) {
    for (int distance = 16; distance > 0; distance /= 2) {
      const uint64_t other = __shfl_xor_sync(0xffffffffu, static_cast<unsigned long long>(value), distance);
      if (other > value) value = other;
    }
    return value;
  }

  team::TeamScratch* scratch_;
};

}  // namespace outrider::cuda
