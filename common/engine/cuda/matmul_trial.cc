#include "common/engine/cuda/matmul_trial.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/engine/cuda/layer_kernels.h"

namespace outrider::cuda {
namespace {

constexpr char kComparing[] = "comparing algorithms of products";

}  // namespace

absl::StatusOr<std::unique_ptr<MatmulTrial>> MatmulTrial::Create(Operand operand, int n, int k,
                                                                 cudaStream_t stream) {
  std::unique_ptr<MatmulTrial> trial(new MatmulTrial(operand, n, k, stream));
  constexpr size_t kCompared = kRows, kExpected = kRows + kRowTile;
  const size_t row_bytes = static_cast<size_t>(k) * OperandBytes(operand);
  const size_t result_bytes = static_cast<size_t>(n) * sizeof(float);
  constexpr char kWhat[] = "choosing algorithms of products";
  absl::Status status = AllocateAll({{trial->x_, kExpected * row_bytes, kWhat},
                                     {trial->shifted_, kCompared * row_bytes, kWhat},
                                     {trial->w_, static_cast<size_t>(n) * row_bytes, kWhat},
                                     {trial->expected_, kExpected * result_bytes, kWhat},
                                     {trial->found_, kCompared * result_bytes, kWhat},
                                     {trial->differs_, sizeof(int), kWhat}});
  const auto fill = [&](const DeviceMemory& memory, uint64_t seed) {
    if (!status.ok()) return;
    status =
        ToStatus(LaunchFill(operand, memory.data(), memory.bytes() / OperandBytes(operand), seed, stream),
                 "making up a product");
  };
  fill(trial->x_, /*seed=*/1);
  fill(trial->w_, /*seed=*/uint64_t{1} << 40);
  if (!status.ok()) return status;
  return trial;
}

bool MatmulTrial::Expect(Multiply multiply) {
  return Remember(MultiplyAll(x_, kRows + kRowTile, kRowTile, multiply, expected_));
}

bool MatmulTrial::HasExpectedBits(int least, int most, Multiply multiply) {
  for (int rows = most; rows >= least; rows -= kRowTile) {
    const absl::StatusOr<bool> same = Compare(rows, /*shift=*/rows / kRowTile % kRowTile, multiply);
    if (!Remember(same.status()) || !*same) return false;
  }
  return true;
}

bool MatmulTrial::HasExpectedBitsAtEachPlace(Multiply multiply) {
  for (int shift = 1; shift < kRowTile; ++shift) {
    const absl::StatusOr<bool> same = Compare(kRowTile, shift, multiply);
    if (!Remember(same.status()) || !*same) return false;
  }
  return true;
}

absl::Status MatmulTrial::MultiplyAll(const DeviceMemory& x, int count, int rows, Multiply multiply,
                                      const DeviceMemory& y) {
  absl::Status status;
  for (int first = 0; first < count && status.ok(); first += rows) {
    const size_t row = static_cast<size_t>(first);
    status = multiply(x.data() + row * static_cast<size_t>(k_) * OperandBytes(operand_), w_.data(),
                      y.as<float>() + row * static_cast<size_t>(n_), std::min(rows, count - first));
  }
  return status;
}

absl::StatusOr<bool> MatmulTrial::Compare(int rows, int shift, Multiply multiply) {
  // A copy, because algorithms may require that operands are aligned to more than a row.
  const size_t skipped = static_cast<size_t>(shift);
  const char* const from = x_.data() + skipped * static_cast<size_t>(k_) * OperandBytes(operand_);
  absl::Status status =
      ToStatus(cudaMemcpyAsync(shifted_.data(), from, shifted_.bytes(), cudaMemcpyDeviceToDevice, stream_),
               kComparing);
  if (status.ok()) status = MultiplyAll(shifted_, kRows, rows, multiply, found_);
  if (status.ok()) {
    status = ToStatus(cudaMemsetAsync(differs_.data(), 0, differs_.bytes(), stream_), kComparing);
  }
  if (status.ok()) {
    status =
        ToStatus(LaunchCompare(expected_.as<float>() + skipped * static_cast<size_t>(n_), found_.as<float>(),
                               found_.bytes() / sizeof(float), differs_.as<int>(), stream_),
                 kComparing);
  }
  int differs = 0;
  if (status.ok()) {
    status =
        ToStatus(cudaMemcpyAsync(&differs, differs_.data(), sizeof(differs), cudaMemcpyDeviceToHost, stream_),
                 kComparing);
  }
  if (status.ok()) status = ToStatus(cudaStreamSynchronize(stream_), kComparing);
  if (!status.ok()) return status;
  return differs == 0;
}

bool MatmulTrial::Remember(const absl::Status& status) {
  status_.Update(status);
  if (!status.ok()) cudaGetLastError();  // or the next launch would report it
  return status.ok();
}

}  // namespace outrider::cuda
