// Steps on the CPU.
#pragma once

#include <memory>

#include "common/engine/memory.h"
#include "common/engine/torch/step_runner.h"

namespace outrider::libtorch {

class CpuRunner final : public StepRunner {
 public:
  at::Device device() const override { return at::kCPU; }
  size_t FreeMemory() const override { return AvailableMemory(); }
  bool PrefersFewShapes() const override { return false; }
  std::unique_ptr<DeviceRanks> Connect(int /*rank*/, int /*size*/,
                                       absl::FunctionRef<void(absl::Span<char>)> /*share*/) override {
    return nullptr;
  }
  void InOrder(absl::FunctionRef<void()> work) override { work(); }
  at::Tensor Run(const Step& step, Forward forward) override {
    logits_ = forward(step).contiguous();
    return logits_;
  }

 private:
  at::Tensor logits_;
};

}  // namespace outrider::libtorch
