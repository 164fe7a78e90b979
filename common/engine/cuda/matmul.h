// Matrix products of activations and weights with cuBLASLt.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/cuda/device_memory.h"
#include "common/engine/cuda/layer_rows.h"
#include "common/engine/cuda/matmul_choices.h"

namespace outrider::cuda {

// Launches of at least this many rows, padding included, use the algorithm for many rows.
inline constexpr int kManyRows = 64;

// Batch-invariant: a row of a product must not depend on the rows that are computed with it
// (docs/exactness.md). cuBLASLt recommends algorithms for few rows and for many. This takes the first pair
// that gives the rows of a made-up product the same bits in launches of every size (MatmulTrial): the first
// algorithm for few rows that has a partner for many, and the first such partner. MatmulLaunches says what
// happens if there is no such pair. Nothing is timed, because other times would choose other bits. Algorithms
// whose reduction depends on timing are excluded from the start. Differences that the made-up product does
// not show remain undetected.
class Matmul {
 public:
  // `choices_file` names the file with the algorithms of an earlier start; if the file does not exist, Store
  // writes it. Empty: no file. Errors are those of ReadMatmulChoices and of CUDA.
  static absl::StatusOr<std::unique_ptr<Matmul>> Create(Operand operand, const std::string& choices_file,
                                                        cudaStream_t stream);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  // Plans the product with weights [n, k], multiples of 16, and returns its number for Run. Temporarily takes
  // device memory for weights of that size and for two products of about 512 rows. Makes 65 launches if the
  // first pair is taken, and 35 with the file of an earlier start. FAILED_PRECONDITION if that file lacks
  // this product, if cuBLASLt no longer runs its algorithms, or if they no longer give rows the same bits.
  absl::StatusOr<int> Plan(int n, int k);

  // Writes the choices file unless it was read. Call after the last Plan.
  absl::Status Store() const;
  const MatmulChoices& choices() const { return choices_; }

  // y[r, :] = x[r, :] W^T for PaddedRows(rows) rows. x and W are [*, k] of the operand's type; y is float32
  // [*, n]; all are aligned to 16 bytes. The reader of y applies fp8's scales. Can be captured in a graph.
  absl::Status Run(int plan, const void* x, const void* w, float* y, int rows) const {
    return Multiply(shapes_[static_cast<size_t>(plan)], x, w, y, rows);
  }

 private:
  // An algorithm that can run `rows_at_once` rows within the workspace.
  struct Algorithm {
    cublasLtMatmulAlgo_t algorithm;
    int rows_at_once;
  };
  struct Shape {
    int n;
    int k;
    Algorithm few_rows;
    Algorithm many_rows;
    MatmulLaunches launches;
  };

  Matmul(Operand operand, std::string choices_file, cudaStream_t stream)
      : operand_(operand), choices_file_(std::move(choices_file)), stream_(stream) {}

  absl::StatusOr<Shape> Choose(int n, int k) const;
  absl::StatusOr<Shape> Restore(int n, int k) const;
  // The algorithms that cuBLASLt recommends for a product of `rows` rows, best first.
  absl::StatusOr<std::vector<Algorithm>> Recommended(int n, int k, int rows) const;
  // Finds how many rows the algorithm runs at once. Returns nothing if it does not run.
  std::optional<Algorithm> Runnable(int n, int k, const cublasLtMatmulAlgo_t& algorithm) const;
  absl::Status Multiply(const Shape& shape, const void* x, const void* w, float* y, int rows) const;

  const Operand operand_;
  const std::string choices_file_;
  const cudaStream_t stream_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  DeviceMemory workspace_;
  std::vector<Shape> shapes_;
  MatmulChoices choices_;  // of shapes_
  std::optional<MatmulChoices> stored_;
};

}  // namespace outrider::cuda
