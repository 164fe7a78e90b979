#include "common/engine/cuda/matmul.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/engine/cuda/matmul_trial.h"
#include "common/spec/status.h"

namespace outrider::cuda {
namespace {

// NVIDIA's recommendation for Hopper.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

absl::Status ToStatus(cublasStatus_t status, absl::string_view doing) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cuBLASLt: ", cublasLtGetStatusString(status), " while ", doing));
}

// How many of cuBLASLt's recommendations are tried.
constexpr int kRecommendations = 8;

// Launches have at most this many rows. All multiples of kRowTile up to it are tried.
constexpr int kMostRows = MatmulTrial::kRows;

template <class T>
T Attribute(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value{};
  size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), &written);
  return value;
}

// Converts an algorithm to the form that is stored.
MatmulAlgorithm ToStored(const cublasLtMatmulAlgo_t& algorithm) {
  MatmulAlgorithm stored;
  static_assert(sizeof(stored.words) == sizeof(algorithm.data));
  std::copy(std::begin(algorithm.data), std::end(algorithm.data), stored.words.begin());
  stored.config =
      absl::StrCat("id ", Attribute<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_ID), " tile ",
                   Attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID), " stages ",
                   Attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID), " split-k ",
                   Attribute<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM), " reduction ",
                   Attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME), " swizzle ",
                   Attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING), " custom ",
                   Attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION), " inner ",
                   Attribute<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID), " cluster ",
                   Attribute<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID));
  return stored;
}

cublasLtMatmulAlgo_t FromStored(const MatmulAlgorithm& stored) {
  cublasLtMatmulAlgo_t algorithm;
  std::copy(stored.words.begin(), stored.words.end(), std::begin(algorithm.data));
  return algorithm;
}

// The matrix layouts of one product. cuBLASLt is column-major: a row-major matrix [rows, columns] is its
// [columns, rows], so y = x W^T is its Y = W^T X with W transposed.
struct Layouts {
  Layouts(Operand operand, int n, int k, int rows) {
    const cudaDataType_t type = operand == Operand::kFp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    const uint64_t columns = static_cast<uint64_t>(k), outputs = static_cast<uint64_t>(n);
    const uint64_t count = static_cast<uint64_t>(PaddedRows(rows));
    cublasLtMatrixLayoutInit(&w, type, columns, outputs, k);
    cublasLtMatrixLayoutInit(&x, type, columns, count, k);
    cublasLtMatrixLayoutInit(&y, CUDA_R_32F, outputs, count, n);
  }

  cublasLtMatrixLayoutOpaque_t w, x, y;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Matmul>> Matmul::Create(Operand operand, const std::string& choices_file,
                                                       cudaStream_t stream) {
  std::unique_ptr<Matmul> matmul(new Matmul(operand, choices_file, stream));
  constexpr char kAsking[] = "asking for the device", kStarting[] = "starting";
  int device = 0;
  cudaDeviceProp gpu;
  OUTRIDER_TRY(ToStatus(cudaGetDevice(&device), kAsking));
  OUTRIDER_TRY(ToStatus(cudaGetDeviceProperties(&gpu, device), kAsking));
  matmul->choices_ = {.gpu = gpu.name,
                      .cublas = static_cast<int>(cublasLtGetVersion()),
                      .operand = operand == Operand::kFp8 ? "fp8" : "bfloat16",
                      .products = {}};
  if (!choices_file.empty()) {
    matmul->stored_ = OUTRIDER_TRY(ReadMatmulChoices(choices_file, matmul->choices_));
  }
  OUTRIDER_TRY(ToStatus(cublasLtCreate(&matmul->handle_), kStarting));
  OUTRIDER_TRY(
      ToStatus(cublasLtMatmulDescCreate(&matmul->product_, CUBLAS_COMPUTE_32F, CUDA_R_32F), kStarting));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  OUTRIDER_TRY(ToStatus(cublasLtMatmulDescSetAttribute(matmul->product_, CUBLASLT_MATMUL_DESC_TRANSA,
                                                       &transposed, sizeof(transposed)),
                        "describing a product"));
  matmul->workspace_ = OUTRIDER_TRY(DeviceMemory::Allocate(kWorkspaceBytes, "matrix products"));
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
  const Shape shape = OUTRIDER_TRY(stored_ ? Restore(n, k) : Choose(n, k));
  shapes_.push_back(shape);
  choices_.products.push_back({.n = n,
                               .k = k,
                               .few_rows = ToStored(shape.few_rows.algorithm),
                               .many_rows = ToStored(shape.many_rows.algorithm),
                               .launches = shape.launches});
  return static_cast<int>(shapes_.size()) - 1;
}

absl::Status Matmul::Store() const {
  if (choices_file_.empty() || stored_) return absl::OkStatus();
  return WriteMatmulChoices(choices_file_, choices_);
}

absl::StatusOr<Matmul::Shape> Matmul::Restore(int n, int k) const {
  const MatmulChoice* const stored = stored_->Find(n, k);
  const auto refuse = [&](absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat(choices_file_, ": ", why, " of ", n, " x ", k,
                                                      "; remove the file to choose algorithms anew"));
  };
  if (stored == nullptr) return refuse("was written for another model: it has no product");
  std::optional<Algorithm> few_rows = Runnable(n, k, FromStored(stored->few_rows));
  std::optional<Algorithm> many_rows = Runnable(n, k, FromStored(stored->many_rows));
  if (!few_rows || !many_rows) return refuse("cuBLASLt does not run the algorithm for products");
  if (stored->launches == MatmulLaunches::kTiles) few_rows->rows_at_once = many_rows->rows_at_once = kRowTile;
  const Shape shape{n, k, *few_rows, *many_rows, stored->launches};

  // All sizes were tried when the file was written. Trying one size for each algorithm again is cheap.
  const std::unique_ptr<MatmulTrial> trial = OUTRIDER_TRY(MatmulTrial::Create(operand_, n, k, stream_));
  const auto multiply = [&](const void* x, const void* w, float* y, int rows) {
    return Multiply(shape, x, w, y, rows);
  };
  constexpr int kMostFewRows = kManyRows - kRowTile;
  const bool same = trial->Expect(multiply) && trial->HasExpectedBits(kMostFewRows, kMostFewRows, multiply) &&
                    trial->HasExpectedBits(kMostRows, kMostRows, multiply);
  OUTRIDER_TRY(trial->status());
  if (!same) return refuse("a row's bits depend on its batch with the algorithms for products");
  return shape;
}

absl::StatusOr<Matmul::Shape> Matmul::Choose(int n, int k) const {
  const std::unique_ptr<MatmulTrial> trial = OUTRIDER_TRY(MatmulTrial::Create(operand_, n, k, stream_));
  const std::vector<Algorithm> few_rows = OUTRIDER_TRY(Recommended(n, k, kRowTile));
  const std::vector<Algorithm> many_rows = OUTRIDER_TRY(Recommended(n, k, kManyRows));
  // Shapes are tried as Run will use them: each algorithm in launches of the sizes that it is for.
  const auto with = [&](const Shape& shape) {
    return [&](const void* x, const void* w, float* y, int rows) { return Multiply(shape, x, w, y, rows); };
  };
  std::optional<Shape> alone;
  for (const Algorithm& few : few_rows) {
    const Shape few_only{n, k, few, few, MatmulLaunches::kFewOnly};
    if (!trial->Expect(with(few_only))) continue;
    if (!trial->HasExpectedBits(kRowTile, kManyRows - kRowTile, with(few_only))) continue;
    for (const Algorithm& many : many_rows) {
      const Shape pair{n, k, few, many, MatmulLaunches::kPair};
      if (trial->HasExpectedBits(kManyRows, kMostRows, with(pair))) return pair;
    }
    if (!alone && trial->HasExpectedBits(kManyRows, kMostRows, with(few_only))) alone = few_only;
  }
  if (alone) return *alone;
  for (Algorithm tile : few_rows) {
    tile.rows_at_once = kRowTile;
    const Shape tiles{n, k, tile, tile, MatmulLaunches::kTiles};
    if (trial->Expect(with(tiles)) && trial->HasExpectedBitsAtEachPlace(with(tiles))) return tiles;
  }
  OUTRIDER_TRY(trial->status());
  return absl::InternalError(absl::StrCat("cuBLASLt: none of its algorithms for ", n, " x ", k,
                                          " gives a row the same bits in every batch"));
}

absl::StatusOr<std::vector<Matmul::Algorithm>> Matmul::Recommended(int n, int k, int rows) const {
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
  Layouts layouts(operand_, n, k, rows);
  cublasLtMatmulHeuristicResult_t found[kRecommendations];
  int count = 0;
  OUTRIDER_TRY(
      ToStatus(cublasLtMatmulAlgoGetHeuristic(handle_, product_, &layouts.w, &layouts.x, &layouts.y,
                                              &layouts.y, &preference, kRecommendations, found, &count),
               absl::StrCat("choosing an algorithm for ", n, " x ", k)));
  std::vector<Algorithm> algorithms;
  for (const cublasLtMatmulHeuristicResult_t& result :
       absl::MakeConstSpan(found, static_cast<size_t>(count))) {
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    if (const auto runnable = Runnable(n, k, result.algo)) algorithms.push_back(*runnable);
  }
  return algorithms;
}

std::optional<Matmul::Algorithm> Matmul::Runnable(int n, int k, const cublasLtMatmulAlgo_t& algorithm) const {
  for (int rows = kMostRows; rows >= kRowTile; rows /= 2) {
    Layouts layouts(operand_, n, k, rows);
    cublasLtMatmulHeuristicResult_t result;
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle_, product_, &layouts.w, &layouts.x,
                                                          &layouts.y, &layouts.y, &algorithm, &result);
    if (status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kWorkspaceBytes) {
      return Algorithm{algorithm, rows};
    }
  }
  return std::nullopt;
}

absl::Status Matmul::Multiply(const Shape& shape, const void* x, const void* w, float* y, int rows) const {
  const float one = 1, zero = 0;
  for (int first = 0, part = 0; first < rows; first += part) {
    const Algorithm& algorithm = PaddedRows(rows - first) < kManyRows ? shape.few_rows : shape.many_rows;
    part = std::min(algorithm.rows_at_once, rows - first);
    Layouts layouts(operand_, shape.n, shape.k, part);
    const char* const from = static_cast<const char*>(x) + static_cast<size_t>(first) *
                                                               static_cast<size_t>(shape.k) *
                                                               OperandBytes(operand_);
    float* const to = y + static_cast<size_t>(first) * static_cast<size_t>(shape.n);
    OUTRIDER_TRY(ToStatus(
        cublasLtMatmul(handle_, product_, &one, w, &layouts.w, from, &layouts.x, &zero, to, &layouts.y, to,
                       &layouts.y, &algorithm.algorithm, workspace_.data(), workspace_.bytes(), stream_),
        absl::StrCat("multiplying by ", shape.n, " x ", shape.k, " for ", part, " rows")));
  }
  return absl::OkStatus();
}

}  // namespace outrider::cuda
