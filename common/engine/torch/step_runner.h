// Where a decoder's steps run.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/torch/decision_kernels.h"
#include "common/engine/torch/step.h"

namespace outrider::libtorch {

// What ranks exchange between their devices, in their runners' order.
class DeviceRanks {
 public:
  virtual ~DeviceRanks() = default;
  // Makes a float32 tensor the sum of all ranks' tensors.
  virtual void Sum(at::Tensor& tensor) = 0;
  // The tensors of all ranks, which are alike: [ranks, ...].
  virtual at::Tensor Gather(const at::Tensor& tensor) = 0;
};

// One thread. Functions throw c10::Error if the device fails.
class StepRunner {
 public:
  using Forward = absl::FunctionRef<at::Tensor(const Step& step)>;

  virtual ~StepRunner() = default;

  virtual at::Device device() const = 0;
  // Bytes that can still be allocated there.
  virtual size_t FreeMemory() const = 0;
  // Whether steps of a shape that was seen before run faster, so that it pays to pad them (MakeDecodeStep).
  virtual bool PrefersFewShapes() const = 0;

  // Connects the devices of ranks. `share` sends rank 0's bytes to the others, which receive as many. Null
  // for a device whose memory is the host's.
  virtual std::unique_ptr<DeviceRanks> Connect(int rank, int size,
                                               absl::FunctionRef<void(absl::Span<char>)> share) = 0;
  // Calls `work` with everything that it does on tensors in this runner's order. The functions below are
  // called inside it.
  virtual void InOrder(absl::FunctionRef<void()> work) = 0;
  // Computes the step's logits with `forward`, always the same. They are on the device, and valid until the
  // next call.
  virtual at::Tensor Compute(const Step& step, Forward forward) = 0;
  // Logits on the host, after waiting for them. Valid until the next call.
  virtual at::Tensor ToHost(const at::Tensor& logits) = 0;
  // Null: the host decides. So it does on a GPU that our kernels were not compiled for.
  virtual DecisionKernels* decisions() = 0;
};

// The function that liboutrider_torch_cuda.so exports: makes a runner for cuda:`device`. FAILED_PRECONDITION
// if there is no such device.
using CreateCudaRunnerFunction = void(int device, bool high_priority,
                                      absl::StatusOr<std::unique_ptr<StepRunner>>& result);
inline constexpr char kCreateCudaRunner[] = "outrider_create_torch_cuda_runner";

}  // namespace outrider::libtorch
