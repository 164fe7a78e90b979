#include "common/engine/cuda/matmul.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace outrider::cuda {
namespace {

// NVIDIA's recommendation for Hopper.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

absl::Status ToStatus(cublasStatus_t status, absl::string_view doing) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cuBLASLt: ", cublasLtGetStatusString(status), " while ", doing));
}

// The matrix layouts of one product. cuBLASLt is column-major: a row-major matrix [rows, columns] is its
// [columns, rows], so y = x W^T is its Y = W^T X with W transposed.
class Layouts {
 public:
  Layouts(Operand operand, int n, int k, int rows) {
    const cudaDataType_t type = operand == Operand::kFp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    const uint64_t columns = static_cast<uint64_t>(k);
    const uint64_t outputs = static_cast<uint64_t>(n);
    const uint64_t count = static_cast<uint64_t>(PaddedRows(rows));
    cublasLtMatrixLayoutInit(&w, type, columns, outputs, k);
    cublasLtMatrixLayoutInit(&x, type, columns, count, k);
    cublasLtMatrixLayoutInit(&y, CUDA_R_32F, outputs, count, n);
  }

  cublasLtMatrixLayoutOpaque_t w, x, y;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Matmul>> Matmul::Create(Operand operand, cudaStream_t stream) {
  std::unique_ptr<Matmul> matmul(new Matmul(operand, stream));
  absl::Status status = ToStatus(cublasLtCreate(&matmul->handle_), "starting");
  if (!status.ok()) return status;
  status = ToStatus(cublasLtMatmulDescCreate(&matmul->product_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "starting");
  if (!status.ok()) return status;
  const cublasOperation_t transposed = CUBLAS_OP_T;
  status = ToStatus(cublasLtMatmulDescSetAttribute(matmul->product_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                                   sizeof(transposed)),
                    "describing a product");
  if (!status.ok()) return status;
  absl::StatusOr<DeviceMemory> workspace = DeviceMemory::Allocate(kWorkspaceBytes, "matrix products");
  if (!workspace.ok()) return workspace.status();
  matmul->workspace_ = *std::move(workspace);
  return matmul;
}

Matmul::~Matmul() {
  if (product_ != nullptr) cublasLtMatmulDescDestroy(product_);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

absl::StatusOr<int> Matmul::Plan(int n, int k) {
  const auto same = [&](const Shape& shape) { return shape.n == n && shape.k == k; };
  if (const auto known = std::find_if(shapes_.begin(), shapes_.end(), same); known != shapes_.end()) {
    return static_cast<int>(known - shapes_.begin());
  }
  cublasLtMatmulPreferenceOpaque_t preference;
  cublasLtMatmulPreferenceInit(&preference);
  const size_t workspace = kWorkspaceBytes;
  cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                       sizeof(workspace));
  // With split-K, partial sums are reduced in the workspace, in order. Reduction in place would be in order
  // of arrival.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                       sizeof(reductions));
  Layouts layouts(operand_, n, k, kRowTile);
  cublasLtMatmulHeuristicResult_t best;
  int found = 0;
  const absl::Status status =
      ToStatus(cublasLtMatmulAlgoGetHeuristic(handle_, product_, &layouts.w, &layouts.x, &layouts.y,
                                              &layouts.y, &preference, 1, &best, &found),
               absl::StrCat("choosing an algorithm for ", n, " x ", k));
  if (!status.ok()) return status;
  if (found == 0) return absl::InternalError(absl::StrCat("cuBLASLt: no algorithm for ", n, " x ", k));
  const absl::StatusOr<int> rows = RowsAtOnce(n, k, best.algo);
  if (!rows.ok()) return rows.status();
  shapes_.push_back({n, k, best.algo, *rows});
  return static_cast<int>(shapes_.size()) - 1;
}

absl::StatusOr<int> Matmul::RowsAtOnce(int n, int k, const cublasLtMatmulAlgo_t& algorithm) {
  // More rows do not make a product faster: from here on it is bound by arithmetic.
  constexpr int kMost = 512;
  for (int rows = kMost; rows >= kRowTile; rows /= 2) {
    Layouts layouts(operand_, n, k, rows);
    cublasLtMatmulHeuristicResult_t result;
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle_, product_, &layouts.w, &layouts.x,
                                                          &layouts.y, &layouts.y, &algorithm, &result);
    if (status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kWorkspaceBytes) return rows;
  }
  return absl::InternalError(absl::StrCat("cuBLASLt: its algorithm for ", n, " x ", k, " does not run"));
}

absl::Status Matmul::Run(int plan, const void* x, const void* w, float* y, int rows) {
  const Shape& shape = shapes_[static_cast<size_t>(plan)];
  const float one = 1, zero = 0;
  absl::Status status;
  for (int first = 0; first < rows && status.ok(); first += shape.rows_at_once) {
    const int part = std::min(shape.rows_at_once, rows - first);
    Layouts layouts(operand_, shape.n, shape.k, part);
    const char* const from = static_cast<const char*>(x) + static_cast<size_t>(first) *
                                                               static_cast<size_t>(shape.k) *
                                                               OperandBytes(operand_);
    float* const to = y + static_cast<size_t>(first) * static_cast<size_t>(shape.n);
    status = ToStatus(
        cublasLtMatmul(handle_, product_, &one, w, &layouts.w, from, &layouts.x, &zero, to, &layouts.y, to,
                       &layouts.y, &shape.algorithm, workspace_.data(), workspace_.bytes(), stream_),
        absl::StrCat("multiplying by ", shape.n, " x ", shape.k, " for ", part, " rows"));
  }
  return status;
}

}  // namespace outrider::cuda
