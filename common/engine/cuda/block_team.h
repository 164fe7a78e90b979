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

  __device__ uint32_t Add(uint32_t* cell, uint32_t n) const { return atomicAdd(cell, n); }

  // One addition for all threads of a warp that count in the same cell at the same time. Each gets the number
  // that it would get if they counted one after the other.
  __device__ uint32_t Count(uint32_t* cell) const {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(cell));
    const unsigned same = __match_any_sync(__activemask(), address);
    const int first = __ffs(static_cast<int>(same)) - 1;
    const int lane = rank() % 32;
    uint32_t before = 0;
    if (lane == first) before = atomicAdd(cell, static_cast<uint32_t>(__popc(same)));
    before = __shfl_sync(same, before, first);
    return before + static_cast<uint32_t>(__popc(same & ((1u << lane) - 1)));
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
