#include "common/engine/cuda/decide_kernels.h"

#include <cstddef>

#include "common/engine/cuda/block_team.h"
#include "common/engine/cuda/decide_rows.h"
#include "common/spec/team/row_draw.h"
#include "common/spec/team/row_shape.h"
#include "common/spec/team/team.h"

namespace outrider::cuda {
namespace {

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
                  int step, ProposeOutput* outputs, int32_t* q_ids, float* q_weights, int32_t* next_tokens) {
  __shared__ team::TeamScratch scratch;
  const size_t row = blockIdx.x;
  const ProposeInput input = inputs[row];
  if (step >= input.steps) return;
  BlockTeam team(&scratch);
  ProposeRow(team, weights + row * vocab, vocab, shaped[row], input, step, outputs + row,
             q_ids + row * kMaxTopN, q_weights + row * kMaxTopN);
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

cudaError_t CheckDecideKernels() {
  cudaFuncAttributes attributes;
  for (const void* kernel :
       {reinterpret_cast<const void*>(&ShapeKernel), reinterpret_cast<const void*>(&ProposeKernel),
        reinterpret_cast<const void*>(&RaceKernel), reinterpret_cast<const void*>(&VerifyKernel)}) {
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess)
      return error;
  }
  return cudaSuccess;
}

cudaError_t LaunchShape(float* logits, int vocab, int rows, const ShapeParams* params, ShapedRow* shaped,
                        cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  ShapeKernel<<<rows, kThreads, 0, stream>>>(logits, vocab, params, shaped);
  return cudaGetLastError();
}

cudaError_t LaunchPropose(const float* weights, int vocab, int rows, const ShapedRow* shaped,
                          const ProposeInput* inputs, int step, ProposeOutput* outputs, int32_t* q_ids,
                          float* q_weights, int32_t* next_tokens, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  ProposeKernel<<<rows, kThreads, 0, stream>>>(weights, vocab, shaped, inputs, step, outputs, q_ids,
                                               q_weights, next_tokens);
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
