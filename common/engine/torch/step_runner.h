// Runs a decoder's steps: on the CPU, or on a GPU through a library beside this plug-in that calls CUDA. Try
// is the border between libtorch, which throws, and the engine, which does not.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/engine/memory.h"
#include "common/engine/model.h"
#include "common/engine/torch/step.h"

namespace outrider::libtorch {

// Exchanges tensors between the devices of ranks, in the order of their runners' work.
class DeviceRanks {
 public:
  virtual ~DeviceRanks() = default;
  // Makes a float32 tensor the sum of all ranks' tensors.
  virtual void Sum(at::Tensor& tensor) = 0;
  // The tensors of all ranks, which have the same shape: [ranks, ...].
  virtual at::Tensor Gather(const at::Tensor& tensor) = 0;
};

// Runs steps on a device. One thread. Functions throw c10::Error if the device fails.
class StepRunner {
 public:
  using Forward = absl::FunctionRef<at::Tensor(const Step& step)>;

  virtual ~StepRunner() = default;

  virtual at::Device device() const = 0;
  // Bytes that can still be allocated on the device.
  virtual size_t FreeMemory() const = 0;
  // Whether steps of a shape that occurred before run faster, so that padding them pays (MakeDecodeStep).
  virtual bool PrefersFewShapes() const = 0;

  // Connects the devices of ranks. `share` sends rank 0's bytes to the others, which receive the same number
  // of bytes. Returns null for a device whose memory is the host's.
  virtual std::unique_ptr<DeviceRanks> Connect(int rank, int size,
                                               absl::FunctionRef<void(absl::Span<char>)> share) = 0;
  // Calls `work` so that its tensor operations run in this runner's order. Call the functions below inside
  // `work`.
  virtual void InOrder(absl::FunctionRef<void()> work) = 0;
  // Computes the step's logits with `forward`, which is the same in all calls. The logits are on the device,
  // and valid until the next call.
  virtual at::Tensor Compute(const Step& step, Forward forward) = 0;
  // Waits for the logits and returns them on the host. Valid until the next call.
  virtual at::Tensor ToHost(const at::Tensor& logits) = 0;
  // See Model::graph_captures.
  virtual GraphCaptures graph_captures() const { return {}; }
};

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

 private:
  at::Tensor logits_;
};

// The function that liboutrider_torch_cuda.so exports: makes a runner for cuda:`device`. FAILED_PRECONDITION
// if there is no such device.
using CreateCudaRunnerFunction = void(int device, bool high_priority,
                                      absl::StatusOr<std::unique_ptr<StepRunner>>& result);
inline constexpr char kCreateCudaRunner[] = "outrider_create_torch_cuda_runner";

// A runner for cuda:`device`, from liboutrider_torch_cuda.so. With high_priority its work goes first.
// FAILED_PRECONDITION if the library, or one of libtorch's, cannot be loaded, or if there is no such device.
absl::StatusOr<std::unique_ptr<StepRunner>> LoadCudaRunner(int device, bool high_priority);

// Calls `work` in the runner's order, without gradients. Turns exceptions of libtorch and of its libraries
// into errors on one line: RESOURCE_EXHAUSTED if there is not enough memory, else INTERNAL. `what` names the
// attempt.
absl::Status Try(StepRunner& runner, absl::string_view what, absl::FunctionRef<absl::Status()> work);

}  // namespace outrider::libtorch
