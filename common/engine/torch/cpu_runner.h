// Steps on the CPU.
#pragma once

#include <memory>

#include "common/engine/memory.h"
#include "common/engine/torch/step_runner.h"

namespace outrider::libtorch {

class CpuRunner : public StepRunner {
 public:
  at::Device device() const override { return at::kCPU; }
  size_t FreeMemory() const override { return AvailableMemory(); }
  bool PrefersFewShapes() const override { return false; }
  std::unique_ptr<DeviceRanks> Connect(int /*rank*/, int /*size*/,
                                       absl::FunctionRef<void(absl::Span<char>)> /*share*/) override {
    return nullptr;
  }
  void InOrder(absl::FunctionRef<void()> work) override { work(); }
  at::Tensor Compute(const Step& step, Forward forward) override { return forward(step).contiguous(); }
  at::Tensor ToHost(const at::Tensor& logits) override {
    logits_ = logits;
    return logits_;
  }
  // The host's own code is faster.
  DecisionKernels* decisions() override { return nullptr; }

 private:
  at::Tensor logits_;
};

}  // namespace outrider::libtorch
