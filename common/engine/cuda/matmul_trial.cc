#include "common/engine/cuda/matmul_trial.h"

#include <algorithm>
#include <cstdint>

#include "common/engine/cuda/matmul_trial_kernels.h"

namespace outrider::cuda {

absl::StatusOr<std::unique_ptr<MatmulTrial>> MatmulTrial::Create(Operand operand, int n, int k,
                                                                 cudaStream_t stream) {
  std::unique_ptr<MatmulTrial> trial(new MatmulTrial(operand, n, k, stream));
  const size_t rows = kRows, columns = static_cast<size_t>(n), depth = static_cast<size_t>(k);
  const size_t result_bytes = rows * columns * sizeof(float);
  constexpr char kWhat[] = "choosing algorithms of products";
  absl::Status status =
      Assign(DeviceMemory::Allocate(rows * depth * OperandBytes(operand), kWhat), trial->x_);
  if (status.ok())
    status = Assign(DeviceMemory::Allocate(columns * depth * OperandBytes(operand), kWhat), trial->w_);
  if (status.ok()) status = Assign(DeviceMemory::Allocate(result_bytes, kWhat), trial->expected_);
  if (status.ok()) status = Assign(DeviceMemory::Allocate(result_bytes, kWhat), trial->found_);
  if (status.ok()) status = Assign(DeviceMemory::Allocate(sizeof(int), kWhat), trial->differs_);
  if (status.ok())
    status =
        ToStatus(LaunchFill(operand, trial->x_.data(), rows * depth, /*seed=*/1, stream), "making up rows");
  if (status.ok())
    status =
        ToStatus(LaunchFill(operand, trial->w_.data(), columns * depth, /*seed=*/uint64_t{1} << 40, stream),
                 "making up weights");
  if (!status.ok()) return status;
  return trial;
}

absl::Status MatmulTrial::Expect(int rows_at_once, Multiply multiply) {
  return MultiplyAll(rows_at_once, multiply, expected_.as<float>());
}

absl::StatusOr<bool> MatmulTrial::HasExpectedBits(absl::Span<const int> rows_at_once, Multiply multiply) {
  absl::Status status = ToStatus(cudaMemsetAsync(differs_.data(), 0, differs_.bytes(), stream_), "comparing");
  for (const int rows : rows_at_once) {
    if (status.ok()) status = MultiplyAll(rows, multiply, found_.as<float>());
    if (!status.ok()) return status;
    status = ToStatus(LaunchCompare(expected_.as<float>(), found_.as<float>(),
                                    expected_.bytes() / sizeof(float), differs_.as<int>(), stream_),
                      "comparing");
  }
  int differs = 0;
  if (status.ok())
    status =
        ToStatus(cudaMemcpyAsync(&differs, differs_.data(), sizeof(differs), cudaMemcpyDeviceToHost, stream_),
                 "comparing");
  if (status.ok()) status = ToStatus(cudaStreamSynchronize(stream_), "comparing");
  if (!status.ok()) return status;
  return differs == 0;
}

absl::Status MatmulTrial::MultiplyAll(int rows_at_once, Multiply multiply, float* y) {
  absl::Status status;
  for (int first = 0; first < kRows && status.ok(); first += rows_at_once) {
    const size_t row = static_cast<size_t>(first);
    status = multiply(x_.data() + row * static_cast<size_t>(k_) * OperandBytes(operand_), w_.data(),
                      y + row * static_cast<size_t>(n_), std::min(rows_at_once, kRows - first));
  }
  return status;
}

}  // namespace outrider::cuda
