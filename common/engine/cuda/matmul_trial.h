// Tries out algorithms of matrix products.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/cuda/device_memory.h"
#include "common/engine/cuda/layer_rows.h"

namespace outrider::cuda {

// A made-up product that shows whether algorithms give its rows the same bits. Owns operands whose magnitudes
// span several powers of two, so that a different order of summation changes the last bits. Not thread-safe.
class MatmulTrial {
 public:
  // The maximum number of rows in a launch. Larger launches would not be faster, as arithmetic bounds them.
  static constexpr int kRows = 512;

  // Enqueues y = x W^T for `rows` rows.
  using Multiply = absl::FunctionRef<absl::Status(const void* x, const void* w, float* y, int rows)>;

  // For weights [n, k]. Allocates device memory for the operands and for two results.
  static absl::StatusOr<std::unique_ptr<MatmulTrial>> Create(Operand operand, int n, int k,
                                                             cudaStream_t stream);

  // The functions below also return false after an error: an algorithm may run only some numbers of rows.
  // status() is the first error.
  const absl::Status& status() const { return status_; }

  // Sets the expected bits to those of the rows in products of kRowTile rows. Computes 33 products.
  bool Expect(Multiply multiply);

  // Whether rows have the expected bits in products of least, least + kRowTile, ..., most rows. Computes one
  // product of each size and stops at the first size with other bits. Waits for the stream.
  bool HasExpectedBits(int least, int most, Multiply multiply);

  // The same for kRowTile - 1 products of kRowTile rows, each of which begins with a different row.
  bool HasExpectedBitsAtEachPlace(Multiply multiply);

 private:
  MatmulTrial(Operand operand, int n, int k, cudaStream_t stream)
      : operand_(operand), n_(n), k_(k), stream_(stream) {}

  // Whether a product that begins with row `shift` has the expected bits. Its rows have other places and
  // other neighbours than in Expect's products.
  absl::StatusOr<bool> Compare(int rows, int shift, Multiply multiply);
  // Returns whether `status` is OK. Remembers the first error.
  bool Remember(const absl::Status& status);

  const Operand operand_;
  const int n_;
  const int k_;
  const cudaStream_t stream_;
  absl::Status status_;
  DeviceMemory x_;         // [kRows + kRowTile, k]
  DeviceMemory shifted_;   // [kRows, k], copied from x_
  DeviceMemory w_;         // [n, k]
  DeviceMemory expected_;  // [kRows + kRowTile, n], float32
  DeviceMemory found_;     // [kRows, n], float32
  DeviceMemory differs_;   // int
};

}  // namespace outrider::cuda
