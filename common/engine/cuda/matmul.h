// Matrix products of activations and weights with cuBLASLt.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/cuda/device_memory.h"
#include "common/engine/cuda/row_tile.h"

namespace outrider::cuda {

// The element type of a product's operands: bfloat16, or fp8 (e4m3) with a scale for each row of either
// operand.
enum class Operand : uint8_t { kBFloat16, kFp8 };

inline constexpr size_t OperandBytes(Operand operand) { return operand == Operand::kFp8 ? 1 : 2; }

// Batch-invariant: a row of a product must not depend on the rows that are computed with it
// (docs/exactness.md). The algorithm, with its tiles and its order of summation, is therefore a function of
// the weight's shape only. It is chosen once, for kRowTile rows, and used for any number of rows. Algorithms
// whose reduction depends on timing are excluded.
class Matmul {
 public:
  static absl::StatusOr<std::unique_ptr<Matmul>> Create(Operand operand, cudaStream_t stream);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  // Plans the product with weights [n, k], multiples of 16, and returns its number for Run.
  absl::StatusOr<int> Plan(int n, int k);

  // y[r, :] = x[r, :] W^T for PaddedRows(rows) rows. x and W are [*, k] of the operand's type; y is float32
  // [*, n]; all are aligned to 16 bytes. The reader of y applies fp8's scales. Can be captured in a graph.
  absl::Status Run(int plan, const void* x, const void* w, float* y, int rows);

 private:
  struct Shape {
    int n;
    int k;
    cublasLtMatmulAlgo_t algorithm;
    int rows_at_once;  // as many as the workspace allows
  };

  absl::StatusOr<int> RowsAtOnce(int n, int k, const cublasLtMatmulAlgo_t& algorithm);

  Matmul(Operand operand, cudaStream_t stream) : operand_(operand), stream_(stream) {}

  const Operand operand_;
  const cudaStream_t stream_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  DeviceMemory workspace_;
  std::vector<Shape> shapes_;
};

}  // namespace outrider::cuda
