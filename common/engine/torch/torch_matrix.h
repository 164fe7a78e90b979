// A weight matrix on a device of libtorch's.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/engine/matrix.h"
#include "common/engine/torch/step_runner.h"

namespace outrider::libtorch {

class TorchMatrix final : public Matrix {
 public:
  // Copies `weights`, [n, k], to the dtype and device that `options` say. `runner` must outlive the matrix.
  // RESOURCE_EXHAUSTED if there is not enough memory.
  static absl::StatusOr<std::unique_ptr<Matrix>> Create(const TensorView& weights,
                                                        const at::TensorOptions& options, StepRunner& runner);

  absl::Status Multiply(absl::Span<const float> x, absl::Span<float> y) override;

 private:
  TorchMatrix(at::Tensor weights, StepRunner& runner) : weights_(std::move(weights)), runner_(runner) {}

  const at::Tensor weights_;
  StepRunner& runner_;
};

}  // namespace outrider::libtorch
