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

// A made-up product, to see whether algorithms give its rows the same bits. Owns operands whose magnitudes
// span several powers of two, so that another order of summation shows in the last bits. Not thread-safe.
class MatmulTrial {
 public:
  // How many rows are compared, and the most at once. More would not make a product faster: from here on it
  // is bound by arithmetic.
  static constexpr int kRows = 512;

  // Enqueues y = x W^T for `rows` rows.
  using Multiply = absl::FunctionRef<absl::Status(const void* x, const void* w, float* y, int rows)>;

  // For weights [n, k]. Takes memory for them and for two results.
  static absl::StatusOr<std::unique_ptr<MatmulTrial>> Create(Operand operand, int n, int k,
                                                             cudaStream_t stream);

  // The functions below return false after an error, too: an algorithm may run some numbers of rows only.
  // status() is the first error.
  const absl::Status& status() const { return status_; }

  // Makes the bits that rows have in products of kRowTile rows the expected ones. 33 products.
  bool Expect(Multiply multiply);

  // Whether rows have the expected bits in products of least, least + kRowTile, ..., most rows: kRows / rows
  // products each, rounded up. Ends with the first size that shows other bits, the largest first: it has the
  // fewest products. Waits for the stream.
  bool HasExpectedBits(int least, int most, Multiply multiply);

  // The same for products of kRowTile rows, with each row at each place of one. 480 products.
  bool HasExpectedBitsAtEachPlace(Multiply multiply);

 private:
  MatmulTrial(Operand operand, int n, int k, cudaStream_t stream)
      : operand_(operand), n_(n), k_(k), stream_(stream) {}

  // Enqueues products of `rows` rows until there are `count`; the last may have fewer.
  absl::Status MultiplyAll(const DeviceMemory& x, int count, int rows, Multiply multiply,
                           const DeviceMemory& y);
  // The first product begins with row `shift`, so that rows have other places than in Expect's products, and
  // other rows beside them.
  absl::StatusOr<bool> Compare(int rows, int shift, Multiply multiply);
  // Whether it is OK. Remembers the first error.
  bool Remember(const absl::Status& status);

  const Operand operand_;
  const int n_;
  const int k_;
  const cudaStream_t stream_;
  absl::Status status_;
  DeviceMemory x_;         // [kRows + kRowTile, k]
  DeviceMemory shifted_;   // [kRows, k], of x
  DeviceMemory w_;         // [n, k]
  DeviceMemory expected_;  // [kRows + kRowTile, n], float32
  DeviceMemory found_;     // [kRows, n], float32
  DeviceMemory differs_;   // int
};

}  // namespace outrider::cuda
