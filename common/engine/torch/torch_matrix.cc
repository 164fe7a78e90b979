#include "common/engine/torch/torch_matrix.h"

#include <algorithm>

#include "common/engine/torch/try.h"
#include "common/engine/torch/weights.h"

namespace outrider::libtorch {

absl::StatusOr<std::unique_ptr<Matrix>> TorchMatrix::Create(const TensorView& weights,
                                                            const at::TensorOptions& options,
                                                            StepRunner& runner) {
  at::Tensor copy;
  const absl::Status status = Try(runner, "copying a matrix", [&] {
    copy = ViewOf(weights).to(options, /*non_blocking=*/false, /*copy=*/true).contiguous();
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return std::unique_ptr<Matrix>(new TorchMatrix(std::move(copy), runner));
}

absl::Status TorchMatrix::Multiply(absl::Span<const float> x, absl::Span<float> y) {
  return Try(runner_, "a matrix product", [&] {
    const at::Tensor rows = RowsOf(x, weights_.size(1)).to(weights_.options());
    const at::Tensor product = at::linear(rows, weights_).to(at::kCPU, at::kFloat).contiguous();
    std::copy_n(product.const_data_ptr<float>(), y.size(), y.begin());
    return absl::OkStatus();
  });
}

}  // namespace outrider::libtorch
