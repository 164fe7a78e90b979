#include "common/engine/torch/decider.h"

#include <algorithm>

namespace outrider::libtorch {
namespace {

char* BytesOf(const at::Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }

at::Tensor Bytes(size_t count, const at::TensorOptions& options) {
  return at::empty({static_cast<int64_t>(count)}, options.dtype(at::kByte));
}

int VocabOf(const at::Tensor& logits) { return static_cast<int>(logits.size(1)); }

}  // namespace

Decider::Decider(DecisionKernels& kernels, const cuda::StepPlan& plan, BlockId spare, at::Device device)
    : kernels_(kernels), plan_(plan), shape_(ShapeOf(plan)) {
  const at::Tensor host =
      Bytes(LayOut(shape_, nullptr, inputs_), at::TensorOptions().pinned_memory(device.is_cuda()));
  LayOut(shape_, BytesOf(host), inputs_);
  WriteInputs(plan, shape_, spare, inputs_);
  input_ = host.to(device, /*non_blocking=*/true);
  LayOut(shape_, BytesOf(input_), inputs_);
  output_ = Bytes(LayOut(shape_, nullptr, outputs_), device);
  LayOut(shape_, BytesOf(output_), outputs_);
  shaped_ = Bytes(static_cast<size_t>(shape_.logit_rows) * sizeof(cuda::ShapedRow), device);
  const at::TensorOptions tokens = at::TensorOptions(at::kInt).device(device);
  races_ = at::empty({shape_.logit_rows}, tokens);
  // What no task writes must be a token too: padding is embedded.
  next_tokens_ = at::zeros({shape_.tasks}, tokens);
}

void Decider::First(const at::Tensor& logits) {
  Shape(logits, shape_.logit_rows);
  if (shape_.proposes) return Propose(logits, 0);
  kernels_.Verify(logits.const_data_ptr<float>(), VocabOf(logits), shape_.tasks,
                  std::min(kMaxDraftTokens, shape_.logit_rows - 1),
                  reinterpret_cast<const cuda::ShapedRow*>(BytesOf(shaped_)), inputs_.verify, inputs_.drafted,
                  inputs_.q_ids, inputs_.q_weights, races_.mutable_data_ptr<int32_t>(), outputs_.verdicts);
}

void Decider::Next(int pass, const at::Tensor& logits) {
  Shape(logits, shape_.tasks);
  Propose(logits, pass);
}

void Decider::Finish() {
  const at::Tensor host = output_.cpu();
  LayOut(shape_, BytesOf(host), outputs_);
  ReadOutputs(plan_, shape_, outputs_);
}

void Decider::Shape(const at::Tensor& logits, int rows) {
  kernels_.Shape(logits.mutable_data_ptr<float>(), VocabOf(logits), rows, inputs_.shape_params,
                 reinterpret_cast<cuda::ShapedRow*>(BytesOf(shaped_)));
}

void Decider::Propose(const at::Tensor& logits, int step) {
  const int at = step * shape_.tasks;
  kernels_.Propose(logits.const_data_ptr<float>(), VocabOf(logits), shape_.tasks,
                   reinterpret_cast<const cuda::ShapedRow*>(BytesOf(shaped_)), inputs_.propose, step,
                   outputs_.proposals + at, outputs_.q_ids + at * cuda::kMaxTopN,
                   outputs_.q_weights + at * cuda::kMaxTopN, next_tokens_.mutable_data_ptr<int32_t>());
}

}  // namespace outrider::libtorch
