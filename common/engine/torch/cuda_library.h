// The part of this engine that calls CUDA: a library beside it, which is loaded for --device cuda:N.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/engine/torch/step_runner.h"

namespace outrider::libtorch {

// A runner for cuda:`device`, from liboutrider_torch_cuda.so; RunnerOptions::high_priority.
// FAILED_PRECONDITION if the library, or one of libtorch's, cannot be loaded, or if there is no such device.
absl::StatusOr<std::unique_ptr<StepRunner>> LoadCudaRunner(int device, bool high_priority);

}  // namespace outrider::libtorch
