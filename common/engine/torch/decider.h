// The tasks of a step, decided where its logits are (DeviceTask).
#pragma once

#include <ATen/ATen.h>

#include "common/engine/cuda/step_memory.h"
#include "common/engine/cuda/step_plan.h"
#include "common/engine/torch/decision_kernels.h"
#include "common/kv/block_id.h"

namespace outrider::libtorch {

// For one step, with the plan and the memory of the CUDA backend. Calls: First, then Next for each of the
// plan's draft passes, then Finish. Functions throw c10::Error if the device fails.
class Decider {
 public:
  // The plan outlives this. `spare` is a block that no sequence uses.
  Decider(DecisionKernels& kernels, const cuda::StepPlan& plan, BlockId spare, at::Device device);

  // `logits`: float32 [rows, vocab], those of tasks first, in the plan's order. Overwrites these; rows
  // that no task has are neither read nor written.
  void First(const at::Tensor& logits);
  // The tokens that were drafted last: int64 [tasks], and further ones that mean nothing, up to a power of
  // two.
  at::Tensor next_tokens() const { return next_tokens_.to(at::kLong); }
  // `logits` of draft pass `pass`, from 1 on: [at least tasks, vocab]. Overwrites them.
  void Next(int pass, const at::Tensor& logits);
  // Waits for the device, and stores the results in the tasks.
  void Finish();

 private:
  void Shape(const at::Tensor& logits, int rows);
  void Propose(const at::Tensor& logits, int step);

  DecisionKernels& kernels_;
  const cuda::StepPlan& plan_;
  const cuda::StepShape shape_;
  at::Tensor input_, output_;  // bytes on the device, laid out for shape_
  at::Tensor shaped_, races_, next_tokens_;
  cuda::StepInputs inputs_;
  cuda::StepOutputs outputs_;
};

}  // namespace outrider::libtorch
