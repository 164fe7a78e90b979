// A made-up product, to see whether algorithms give its rows the same bits.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/cuda/device_memory.h"
#include "common/engine/cuda/rows.h"

namespace outrider::cuda {

// Owns operands of kRows rows whose magnitudes span several powers of two, so that another order of summation
// shows in the last bits. Not thread-safe.
class MatmulTrial {
 public:
  static constexpr int kRows = 512;

  // Enqueues y = x W^T for `rows` rows.
  using Multiply = absl::FunctionRef<absl::Status(const void* x, const void* w, float* y, int rows)>;

  static absl::StatusOr<std::unique_ptr<MatmulTrial>> Create(Operand operand, int n, int k,
                                                             cudaStream_t stream);

  // Sets the expected bits: those of products of `rows_at_once` rows each.
  absl::Status Expect(int rows_at_once, Multiply multiply);
  // Whether the rows have the expected bits in launches of each of these sizes. Waits for the stream.
  absl::StatusOr<bool> HasExpectedBits(absl::Span<const int> rows_at_once, Multiply multiply);

 private:
  MatmulTrial(Operand operand, int n, int k, cudaStream_t stream)
      : operand_(operand), n_(n), k_(k), stream_(stream) {}
  absl::Status MultiplyAll(int rows_at_once, Multiply multiply, float* y);

  const Operand operand_;
  const int n_;
  const int k_;
  const cudaStream_t stream_;
  DeviceMemory x_;         // [kRows, k]
  DeviceMemory w_;         // [n, k]
  DeviceMemory expected_;  // [kRows, n], float32
  DeviceMemory found_;     // the same
  DeviceMemory differs_;   // int
};

}  // namespace outrider::cuda
