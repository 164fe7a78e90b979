#include "common/engine/cuda/decide_kernels.h"

#include <cooperative_groups.h>

#include <cstddef>

#include "common/engine/cuda/decide_rows.h"
#include "common/spec/team/row_draw.h"
#include "common/spec/team/row_shape.h"
#include "common/spec/team/team.h"

namespace outrider::cuda {
namespace {

// A thread block of whole warps, at most team::kMaxCandidates threads.
class BlockTeam {
 public:
  __device__ explicit BlockTeam(team::TeamScratch* scratch) : scratch_(scratch) {}

  __device__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ int size() const { return static_cast<int>(blockDim.x); }
  __device__ int group() const { return 0; }
  __device__ int groups() const { return 1; }
  __device__ const BlockTeam& local() const { return *this; }
  __device__ team::TeamScratch& scratch(int /*group*/ = 0) const { return *scratch_; }
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

  // Makes one addition for all threads of a warp that count in the same cell at the same time. Each thread
  // gets the number that it would get if they counted one after the other.
  __device__ uint32_t Count(uint32_t* cell) const {
    const unsigned same = __match_any_sync(__activemask(), reinterpret_cast<unsigned long long>(cell));
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

#if __CUDA_ARCH__ >= 900
// A cluster of thread blocks, which read and write each other's shared memory.
class ClusterTeam {
 public:
  // `own` is in the block's shared memory. Collective.
  __device__ explicit ClusterTeam(team::TeamScratch* own)
      : own_(own), first_(Cluster::map_shared_rank(own, 0)), local_(own) {
    Sync();  // the memory of a block may be used once the block runs
  }

  __device__ int rank() const { return group() * local_.size() + local_.rank(); }
  __device__ int size() const { return groups() * local_.size(); }
  __device__ int group() const { return static_cast<int>(Cluster::block_rank()); }
  __device__ int groups() const { return static_cast<int>(Cluster::num_blocks()); }
  __device__ const BlockTeam& local() const { return local_; }
  __device__ team::TeamScratch& scratch() const { return *first_; }
  __device__ team::TeamScratch& scratch(int group) const {
    return *Cluster::map_shared_rank(own_, static_cast<unsigned>(group));
  }
  __device__ void Sync() const { Cluster::sync(); }

  __device__ uint64_t Max(uint64_t value) const {
    value = local_.Max(value);
    if (local_.rank() == 0) first_->group_partial[group()] = value;
    Sync();
    for (int g = 0; g < groups(); ++g) {
      const uint64_t other = first_->group_partial[g];
      if (other > value) value = other;
    }
    Sync();
    return value;
  }

  __device__ uint32_t Count(uint32_t* cell) const { return local_.Count(cell); }

 private:
  using Cluster = cooperative_groups::cluster_group;

  team::TeamScratch* const own_;
  team::TeamScratch* const first_;
  const BlockTeam local_;
};
using RowTeam = ClusterTeam;
#else
using RowTeam = BlockTeam;
#endif

// The row that this block's team works on.
__device__ int RowOfBlock() {
#if __CUDA_ARCH__ >= 900
  return static_cast<int>(blockIdx.x / cooperative_groups::cluster_group::num_blocks());
#else
  return static_cast<int>(blockIdx.x);
#endif
}

// More threads hide more of the memory's latency.
constexpr int kThreads = team::kMaxCandidates;

__global__ void __launch_bounds__(kThreads)
    ShapeKernel(float* logits, int vocab, const ShapeParams* params, ShapedRow* shaped) {
  __shared__ team::TeamScratch scratch;
  const size_t row = RowOfBlock();
  const ShapeParams wanted = params[row];
  if (wanted.active == 0) return;
  RowTeam team(&scratch);
  team::ShapeRow(team, logits + row * vocab, vocab, wanted.controls, wanted.entropy != 0, shaped + row);
}

__global__ void __launch_bounds__(kThreads)
    ProposeKernel(const float* weights, int vocab, const ShapedRow* shaped, const ProposeInput* inputs,
                  int step, ProposeOutput* outputs, int32_t* q_ids, float* q_weights, int32_t* next_tokens,
                  const int32_t* head_tokens) {
  __shared__ team::TeamScratch scratch;
  const size_t row = RowOfBlock();
  const ProposeInput input = inputs[row];
  if (step >= input.steps) return;
  RowTeam team(&scratch);
  ProposeRow(team, weights + row * vocab, vocab, shaped[row], input, step, outputs + row,
             q_ids + row * kMaxTopN, q_weights + row * kMaxTopN, head_tokens);
  // The thread that wrote the output also reads it.
  if (team.rank() == 0) next_tokens[row] = outputs[row].token;
}

// Runs the races of the coupled rule for all rows of all sequences at the same time. Team (i, s) works on row
// i of sequence s.
__global__ void __launch_bounds__(kThreads)
    RaceKernel(const float* weights, int vocab, const ShapedRow* shaped, const VerifyInput* inputs,
               int32_t* races) {
  __shared__ team::TeamScratch scratch;
  const VerifyInput input = inputs[blockIdx.y];
  const int i = RowOfBlock();
  if (input.active == 0 || input.coupled == 0 || i > input.drafted) return;
  const size_t row = static_cast<size_t>(input.first_row) + i;
  if (shaped[row].finite == 0 || shaped[row].point_mass >= 0) return;
  RowTeam team(&scratch);
  const int winner = team::RaceRow(team, weights + row * vocab, vocab, input.key, input.round_start + i);
  if (team.rank() == 0) races[row] = winner;
}

__global__ void __launch_bounds__(kThreads)
    VerifyKernel(const float* weights, int vocab, const ShapedRow* shaped, const VerifyInput* inputs,
                 const DraftedToken* drafted, const int32_t* q_ids, const float* q_weights,
                 const int32_t* races, VerifyOutput* outputs) {
  __shared__ team::TeamScratch scratch;
  const VerifyInput input = inputs[blockIdx.x];
  if (input.active == 0) return;
  BlockTeam team(&scratch);
  VerifySequence(team, weights, vocab, shaped, races, input, drafted, q_ids, q_weights, outputs + blockIdx.x);
}

// The number of thread blocks in each of a kernel's teams: as many as have something to sum, but no more than
// the current device can run at the same time for all teams.
int BlocksOfTeam(const cudaFuncAttributes& kernel, int teams, int vocab) {
  if (kernel.ptxVersion < 90) return 1;  // RowTeam was compiled as BlockTeam
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  int blocks = 1;
  while (blocks < team::kMaxGroups && 2 * blocks * teams <= processors &&
         blocks * team::kTileBlocks * team::kSumBlock < vocab) {
    blocks *= 2;
  }
  return blocks;
}

// Launches a team for each row of each sequence.
template <class... Parameters, class... Arguments>
cudaError_t LaunchTeams(void (*kernel)(Parameters...), int vocab, int rows, int sequences,
                        cudaStream_t stream, Arguments... arguments) {
  cudaFuncAttributes attributes;
  const cudaError_t known = cudaFuncGetAttributes(&attributes, kernel);
  if (known != cudaSuccess) return known;
  const unsigned blocks = static_cast<unsigned>(BlocksOfTeam(attributes, rows * sequences, vocab));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {blocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(rows) * blocks, static_cast<unsigned>(sequences));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = blocks > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace

cudaError_t LaunchShape(float* logits, int vocab, int rows, const ShapeParams* params, ShapedRow* shaped,
                        cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  return LaunchTeams(ShapeKernel, vocab, rows, 1, stream, logits, vocab, params, shaped);
}

cudaError_t LaunchPropose(const float* weights, int vocab, int rows, const ShapedRow* shaped,
                          const ProposeInput* inputs, int step, ProposeOutput* outputs, int32_t* q_ids,
                          float* q_weights, int32_t* next_tokens, const int32_t* head_tokens,
                          cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  return LaunchTeams(ProposeKernel, vocab, rows, 1, stream, weights, vocab, shaped, inputs, step, outputs,
                     q_ids, q_weights, next_tokens, head_tokens);
}

cudaError_t LaunchVerify(const float* weights, int vocab, int sequences, int max_drafted,
                         const ShapedRow* shaped, const VerifyInput* inputs, const DraftedToken* drafted,
                         const int32_t* q_ids, const float* q_weights, int32_t* races, VerifyOutput* outputs,
                         cudaStream_t stream) {
  if (sequences == 0) return cudaSuccess;
  const cudaError_t raced = LaunchTeams(RaceKernel, vocab, max_drafted + 1, sequences, stream, weights, vocab,
                                        shaped, inputs, races);
  if (raced != cudaSuccess) return raced;
  VerifyKernel<<<sequences, kThreads, 0, stream>>>(weights, vocab, shaped, inputs, drafted, q_ids, q_weights,
                                                   races, outputs);
  return cudaGetLastError();
}

}  // namespace outrider::cuda
