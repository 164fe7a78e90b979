// Products of activations and weights by cuBLASLt.
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

// What operands of a product are: bfloat16, or fp8 (e4m3) with a scale for each row of either operand.
enum class Operand : uint8_t { kBFloat16, kFp8 };

inline constexpr size_t OperandBytes(Operand operand) { return operand == Operand::kFp8 ? 1 : 2; }

// A row of a product must not depend on what other rows are computed with it (docs/exactness.md), so the
// algorithm, with its tiles and its order of summation, is a function of the weight's shape only: it is
// chosen once, for kRowTile rows, and used for any number of them. Reductions that depend on who comes first
// are not among the candidates.
class Matmul {
 public:
  static absl::StatusOr<std::unique_ptr<Matmul>> Create(Operand operand, cudaStream_t stream);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  // A product with weights [n, k]; the number that Run takes. `n` and `k` are multiples of 16.
  absl::StatusOr<int> Plan(int n, int k);

  // y[r, :] = x[r, :] W^T for PaddedRows(rows) rows; x and W are [*, k] of the operand's type, y is float32
  // [*, n], all aligned to 16 bytes. fp8's scales are left to whoever reads y. Can be captured in a graph.
  absl::Status Run(int plan, const void* x, const void* w, float* y, int rows);

 private:
  struct Shape {
    int n;
    int k;
    cublasLtMatmulAlgo_t algorithm;
    int rows_at_once;  // as many as the workspace has room for
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
