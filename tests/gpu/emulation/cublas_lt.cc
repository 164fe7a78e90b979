// The functions of cuBLASLt that the plug-in calls, on the host.
#include <cublasLt.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "algorithms.h"
#include "common/engine/decoder/narrow_floats.h"
#include "work.h"

namespace {

using outrider::emulation::Algorithm;
using outrider::emulation::Recommendations;

struct Layout {
  cudaDataType type;
  uint64_t rows, columns;
};
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));

Layout LayoutOf(cublasLtMatrixLayout_t from) {
  Layout layout;
  std::memcpy(&layout, from, sizeof(layout));
  return layout;
}

float At(const void* data, cudaDataType type, size_t i) {
  return type == CUDA_R_16BF ? outrider::FromBFloat16(static_cast<const uint16_t*>(data)[i])
                             : outrider::FromFloat8(static_cast<const uint8_t*>(data)[i]);
}

Recommendations& Recommended() {
  static Recommendations recommended;
  return recommended;
}

// The size of a tile, which is computed at once. Products consist of whole tiles.
constexpr size_t kRows = 16, kColumns = 2;

// sums[c, r] = sum_k x[k, r] w[c, k], with k in either order.
void MultiplyTile(const float* x, const float* w, size_t depth, bool backwards, float* sums) {
  float tile[kColumns][kRows] = {};
  for (size_t i = 0; i < depth; ++i) {
    const size_t k = backwards ? depth - 1 - i : i;
    for (size_t c = 0; c < kColumns; ++c) {
      for (size_t r = 0; r < kRows; ++r) tile[c][r] += w[c * depth + k] * x[k * kRows + r];
    }
  }
  std::memcpy(sums, tile, sizeof(tile));
}

// y[r, n] = sum_k x[r, k] w[n, k].
void Multiply(const void* w, const Layout& weights, const void* x, const Layout& operand, float* y,
              Algorithm algorithm) {
  const size_t depth = weights.rows, columns = weights.columns, rows = operand.columns;
  std::vector<float> transposed(rows * depth), column(kColumns * depth);  // [tiles, depth, kRows]
  for (size_t r = 0; r < rows; ++r) {
    float* const tile = &transposed[r / kRows * kRows * depth];
    for (size_t k = 0; k < depth; ++k) tile[k * kRows + r % kRows] = At(x, operand.type, r * depth + k);
  }
  const bool backwards =
      algorithm == Algorithm::kBackwards || (algorithm == Algorithm::kByBatch && rows > 16) ||
      (algorithm == Algorithm::kBut64 && rows == 64) || (algorithm == Algorithm::kBut192 && rows == 192);
  for (size_t n = 0; n < columns; n += kColumns) {
    for (size_t i = 0; i < column.size(); ++i) column[i] = At(w, weights.type, n * depth + i);
    for (size_t first = 0; first < rows; first += kRows) {
      float sums[kColumns * kRows], others[kColumns * kRows];
      MultiplyTile(&transposed[first * depth], column.data(), depth, backwards, sums);
      const bool by_place = algorithm == Algorithm::kByPlace;
      if (by_place) MultiplyTile(&transposed[first * depth], column.data(), depth, true, others);
      for (size_t i = 0; i < kColumns * kRows; ++i) {
        const size_t r = i % kRows;
        y[(first + r) * columns + n + i / kRows] = by_place && r % 2 == 1 ? others[i] : sums[i];
      }
    }
  }
}

cublasLtMatmulHeuristicResult_t Recommendation(Algorithm algorithm) {
  cublasLtMatmulHeuristicResult_t result{};
  result.algo.data[0] = static_cast<uint64_t>(algorithm);
  return result;
}

}  // namespace

void outrider::emulation::Recommend(const Recommendations& recommendations) {
  Recommended() = recommendations;
}

extern "C" {

size_t cublasLtGetVersion() { return 1; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(1);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t /*handle*/) { return CUBLAS_STATUS_SUCCESS; }
const char* cublasLtGetStatusString(cublasStatus_t /*status*/) { return "an error of the emulated GPU"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t /*compute*/,
                                        cudaDataType_t /*scale*/) {
  *product = reinterpret_cast<cublasLtMatmulDesc_t>(1);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t /*product*/) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t /*product*/,
                                              cublasLtMatmulDescAttributes_t /*attribute*/,
                                              const void* /*value*/, size_t /*size*/) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t /*preference*/,
                                                     size_t /*size*/) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t /*preference*/,
                                                    cublasLtMatmulPreferenceAttributes_t /*attribute*/,
                                                    const void* /*value*/, size_t /*size*/) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t to, size_t /*size*/,
                                                 cudaDataType type, uint64_t rows, uint64_t columns,
                                                 int64_t stride) {
  const Layout layout{type, rows, columns};
  std::memcpy(to, &layout, sizeof(layout));
  return stride == static_cast<int64_t>(rows) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t /*product*/,
                                              cublasLtMatrixLayout_t /*w*/, cublasLtMatrixLayout_t x,
                                              cublasLtMatrixLayout_t /*c*/, cublasLtMatrixLayout_t /*d*/,
                                              cublasLtMatmulPreference_t /*preference*/, int most,
                                              cublasLtMatmulHeuristicResult_t* results, int* count) {
  const std::vector<Algorithm>& algorithms =
      LayoutOf(x).columns < 64 ? Recommended().few_rows : Recommended().many_rows;
  *count = std::min(most, static_cast<int>(algorithms.size()));
  std::transform(algorithms.begin(), algorithms.begin() + *count, results, Recommendation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t /*product*/,
                                       cublasLtMatrixLayout_t /*w*/, cublasLtMatrixLayout_t /*x*/,
                                       cublasLtMatrixLayout_t /*c*/, cublasLtMatrixLayout_t /*d*/,
                                       const cublasLtMatmulAlgo_t* /*algorithm*/,
                                       cublasLtMatmulHeuristicResult_t* result) {
  result->workspaceSize = 0;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t size, size_t* written) {
  std::memset(value, 0, size);
  if (attribute == CUBLASLT_ALGO_CONFIG_ID) std::memcpy(value, &algorithm->data[0], size);
  *written = size;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t /*product*/,
                              const void* /*one*/, const void* w, cublasLtMatrixLayout_t w_layout,
                              const void* x, cublasLtMatrixLayout_t x_layout, const void* /*zero*/,
                              const void* /*c*/, cublasLtMatrixLayout_t /*c_layout*/, void* y,
                              cublasLtMatrixLayout_t y_layout, const cublasLtMatmulAlgo_t* algorithm,
                              void* /*workspace*/, size_t /*workspace_bytes*/, cudaStream_t stream) {
  const Layout weights = LayoutOf(w_layout), operand = LayoutOf(x_layout), result = LayoutOf(y_layout);
  if (weights.rows != operand.rows || result.rows != weights.columns || result.columns != operand.columns ||
      operand.columns % kRows != 0 || weights.columns % kColumns != 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto kind = static_cast<Algorithm>(algorithm->data[0]);
  outrider::emulation::Enqueue(stream,
                               [=] { Multiply(w, weights, x, operand, static_cast<float*>(y), kind); });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
