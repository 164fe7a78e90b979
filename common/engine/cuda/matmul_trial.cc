#include "common/engine/cuda/matmul_trial.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/engine/cuda/layer_kernels.h"
#include "common/spec/status.h"

namespace outrider::cuda {

absl::StatusOr<std::unique_ptr<MatmulTrial>> MatmulTrial::Create(Operand operand, int n, int k,
                                                                 cudaStream_t stream) {
  std::unique_ptr<MatmulTrial> trial(new MatmulTrial(operand, n, k, stream));
  constexpr size_t kCompared = kRows, kExpected = kRows + kRowTile;
  const size_t row_bytes = static_cast<size_t>(k) * OperandBytes(operand);
  const size_t result_bytes = static_cast<size_t>(n) * sizeof(float);
  constexpr char kWhat[] = "choosing algorithms of products";
  trial->x_ = OUTRIDER_TRY(DeviceMemory::Allocate(kExpected * row_bytes, kWhat));
  trial->shifted_ = OUTRIDER_TRY(DeviceMemory::Allocate(kCompared * row_bytes, kWhat));
  trial->w_ = OUTRIDER_TRY(DeviceMemory::Allocate(static_cast<size_t>(n) * row_bytes, kWhat));
  trial->expected_ = OUTRIDER_TRY(DeviceMemory::Allocate(kExpected * result_bytes, kWhat));
  trial->found_ = OUTRIDER_TRY(DeviceMemory::Allocate(kCompared * result_bytes, kWhat));
  trial->differs_ = OUTRIDER_TRY(DeviceMemory::Allocate(sizeof(int), kWhat));
  const auto fill = [&](const DeviceMemory& memory, uint64_t seed) {
    return ToStatus(LaunchFill(operand, memory.data(), memory.bytes() / OperandBytes(operand), seed, stream),
                    "making up a product");
  };
  OUTRIDER_TRY(fill(trial->x_, /*seed=*/1));
  OUTRIDER_TRY(fill(trial->w_, /*seed=*/uint64_t{1} << 40));
  return trial;
}

bool MatmulTrial::Expect(Multiply multiply) {
  const size_t row_bytes = static_cast<size_t>(k_) * OperandBytes(operand_);
  for (size_t row = 0; row < kRows + kRowTile; row += kRowTile) {
    float* const to = expected_.as<float>() + row * static_cast<size_t>(n_);
    if (!Remember(multiply(x_.data() + row * row_bytes, w_.data(), to, kRowTile))) return false;
  }
  return true;
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

absl::StatusOr<bool> MatmulTrial::Compare(int rows, int shift, Multiply multiply) {
  constexpr char kComparing[] = "comparing algorithms of products";
  const size_t skipped = static_cast<size_t>(shift), count = static_cast<size_t>(rows);
  const size_t columns = static_cast<size_t>(n_);
  const size_t row_bytes = static_cast<size_t>(k_) * OperandBytes(operand_);
  // A copy, because algorithms may require that operands are aligned to more than a row.
  OUTRIDER_TRY(ToStatus(cudaMemcpyAsync(shifted_.data(), x_.data() + skipped * row_bytes, count * row_bytes,
                                        cudaMemcpyDeviceToDevice, stream_),
                        kComparing));
  OUTRIDER_TRY(multiply(shifted_.data(), w_.data(), found_.as<float>(), rows));
  OUTRIDER_TRY(ToStatus(cudaMemsetAsync(differs_.data(), 0, differs_.bytes(), stream_), kComparing));
  OUTRIDER_TRY(ToStatus(LaunchCompare(expected_.as<float>() + skipped * columns, found_.as<float>(),
                                      count * columns, differs_.as<int>(), stream_),
                        kComparing));
  int differs = 0;
  OUTRIDER_TRY(
      ToStatus(cudaMemcpyAsync(&differs, differs_.data(), sizeof(differs), cudaMemcpyDeviceToHost, stream_),
               kComparing));
  OUTRIDER_TRY(ToStatus(cudaStreamSynchronize(stream_), kComparing));
  return differs == 0;
}

bool MatmulTrial::Remember(const absl::Status& status) {
  status_.Update(status);
  if (!status.ok()) cudaGetLastError();  // otherwise the next launch would report it
  return status.ok();
}

}  // namespace outrider::cuda
