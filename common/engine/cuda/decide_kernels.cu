#include "common/engine/cuda/decide_kernels.h"

#include <cstddef>

#include "common/engine/cuda/decide_rows.h"
#include "common/spec/team/row_draw.h"
#include "common/spec/team/row_shape.h"
#include "common/spec/team/team.h"

namespace outrider::cuda {
namespace {

// The team of the device: a thread block of whole warps, at most team::kMaxCandidates threads.
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

// Replaces the template of the same name, with the same results: half a warp sums a block, and its lanes are
// added without a barrier.
template <class Source>
__device__ int SumBlocks(BlockTeam& team, const Source& source, int begin, int end) {
  static_assert(team::kLanes == 16, "half a warp");
  constexpr int kLoads = team::kSumBlock / team::kLanes;
  const int blocks = (end - begin + team::kSumBlock - 1) / team::kSumBlock;
  const int lane = team.rank() % team::kLanes;
  const unsigned half = 0xffffu << (team.rank() % 32 - lane);
  for (int block = team.rank() / team::kLanes; block < blocks; block += team.size() / team::kLanes) {
    const int first = begin + block * team::kSumBlock;
    const int last = team::Smaller(end, first + team::kSumBlock);
    const auto& values = source.Range(first, last);
    decltype(values.Load(0)) loaded[kLoads];
    for (int k = 0; k < kLoads; ++k) {
      const int i = first + lane + k * team::kLanes;
      loaded[k] = i < last ? values.Load(i) : 0;
    }
    double sum = 0;
    for (int k = 0; k < kLoads; ++k) {
      const int i = first + lane + k * team::kLanes;
      if (i < last) sum += values.Value(i, loaded[k]);
    }
    for (int distance = team::kLanes / 2; distance > 0; distance /= 2) {
      sum += __shfl_down_sync(half, sum, distance, team::kLanes);
    }
    if (lane == 0) team.scratch().sums[block] = sum;
  }
  team.Sync();
  return blocks;
}

// One block works on a row or a sequence. More threads hide more of the memory's latency.
constexpr int kThreads = team::kMaxCandidates;

__global__ void __launch_bounds__(kThreads)
    ShapeKernel(float* logits, int vocab, const ShapeParams* params, ShapedRow* shaped) {
  __shared__ team::TeamScratch scratch;
  const ShapeParams wanted = params[blockIdx.x];
  if (wanted.active == 0) return;
  BlockTeam team(&scratch);
  team::ShapeRow(team, logits + static_cast<size_t>(blockIdx.x) * vocab, vocab, wanted.controls,
                 wanted.entropy != 0, shaped + blockIdx.x);
}

__global__ void __launch_bounds__(kThreads)
    ProposeKernel(const float* weights, int vocab, const ShapedRow* shaped, const ProposeInput* inputs,
                  int step, ProposeOutput* outputs, int32_t* q_ids, float* q_weights, int32_t* next_tokens,
                  const int32_t* head_tokens) {
  __shared__ team::TeamScratch scratch;
  const size_t row = blockIdx.x;
  const ProposeInput input = inputs[row];
  if (step >= input.steps) return;
  BlockTeam team(&scratch);
  ProposeRow(team, weights + row * vocab, vocab, shaped[row], input, step, outputs + row,
             q_ids + row * kMaxTopN, q_weights + row * kMaxTopN, head_tokens);
  // By the thread that wrote it.
  if (team.rank() == 0) next_tokens[row] = outputs[row].token;
}

// The races of the coupled rule, all rows of a sequence at the same time. Block (i, s) has row i of sequence
// s.
__global__ void __launch_bounds__(kThreads)
    RaceKernel(const float* weights, int vocab, const ShapedRow* shaped, const VerifyInput* inputs,
               int32_t* races) {
  __shared__ team::TeamScratch scratch;
  const VerifyInput input = inputs[blockIdx.y];
  const int i = static_cast<int>(blockIdx.x);
  if (input.active == 0 || input.coupled == 0 || i > input.drafted) return;
  const size_t row = static_cast<size_t>(input.first_row) + i;
  if (shaped[row].finite == 0 || shaped[row].point_mass >= 0) return;
  BlockTeam team(&scratch);
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

}  // namespace

cudaError_t LaunchShape(float* logits, int vocab, int rows, const ShapeParams* params, ShapedRow* shaped,
                        cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  ShapeKernel<<<rows, kThreads, 0, stream>>>(logits, vocab, params, shaped);
  return cudaGetLastError();
}

cudaError_t LaunchPropose(const float* weights, int vocab, int rows, const ShapedRow* shaped,
                          const ProposeInput* inputs, int step, ProposeOutput* outputs, int32_t* q_ids,
                          float* q_weights, int32_t* next_tokens, const int32_t* head_tokens,
                          cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  ProposeKernel<<<rows, kThreads, 0, stream>>>(weights, vocab, shaped, inputs, step, outputs, q_ids,
                                               q_weights, next_tokens, head_tokens);
  return cudaGetLastError();
}

cudaError_t LaunchVerify(const float* weights, int vocab, int sequences, int max_drafted,
                         const ShapedRow* shaped, const VerifyInput* inputs, const DraftedToken* drafted,
                         const int32_t* q_ids, const float* q_weights, int32_t* races, VerifyOutput* outputs,
                         cudaStream_t stream) {
  if (sequences == 0) return cudaSuccess;
  RaceKernel<<<dim3(max_drafted + 1, sequences), kThreads, 0, stream>>>(weights, vocab, shaped, inputs,
                                                                        races);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  VerifyKernel<<<sequences, kThreads, 0, stream>>>(weights, vocab, shaped, inputs, drafted, q_ids, q_weights,
                                                   races, outputs);
  return cudaGetLastError();
}

}  // namespace outrider::cuda
