// What a device decides from logits that are in its memory.
#pragma once

#include <cstdint>

#include "common/engine/cuda/decide_types.h"

namespace outrider::libtorch {

// As the functions of common/engine/cuda/decide_kernels.h, in the order of a runner. Throws c10::Error if the
// device fails.
class DecisionKernels {
 public:
  virtual ~DecisionKernels() = default;

  virtual void Shape(float* logits, int vocab, int rows, const cuda::ShapeParams* params,
                     cuda::ShapedRow* shaped) = 0;
  virtual void Propose(const float* weights, int vocab, int rows, const cuda::ShapedRow* shaped,
                       const cuda::ProposeInput* inputs, int step, cuda::ProposeOutput* outputs,
                       int32_t* q_ids, float* q_weights, int32_t* next_tokens) = 0;
  virtual void Verify(const float* weights, int vocab, int sequences, int max_drafted,
                      const cuda::ShapedRow* shaped, const cuda::VerifyInput* inputs,
                      const cuda::DraftedToken* drafted, const int32_t* q_ids, const float* q_weights,
                      int32_t* races, cuda::VerifyOutput* outputs) = 0;
};

}  // namespace outrider::libtorch
