#include "common/engine/cuda/matmul.h"

#include <algorithm>
#include <iterator>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/engine/cuda/layer_kernels.h"

namespace outrider::cuda {
namespace {

// NVIDIA's recommendation for Hopper.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

absl::Status ToStatus(cublasStatus_t status, absl::string_view doing) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cuBLASLt: ", cublasLtGetStatusString(status), " while ", doing));
}

// A made-up product, to see whether algorithms give its rows the same bits. Owns operands of kRows rows whose
// magnitudes span several powers of two, so that another order of summation shows in the last bits. Not
// thread-safe.
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

absl::StatusOr<std::unique_ptr<MatmulTrial>> MatmulTrial::Create(Operand operand, int n, int k,
                                                                 cudaStream_t stream) {
  std::unique_ptr<MatmulTrial> trial(new MatmulTrial(operand, n, k, stream));
  const size_t rows = kRows, columns = static_cast<size_t>(n), depth = static_cast<size_t>(k);
  const size_t result_bytes = rows * columns * sizeof(float);
  constexpr char kWhat[] = "choosing algorithms of products";
  absl::Status status = AllocateAll({{trial->x_, rows * depth * OperandBytes(operand), kWhat},
                                     {trial->w_, columns * depth * OperandBytes(operand), kWhat},
                                     {trial->expected_, result_bytes, kWhat},
                                     {trial->found_, result_bytes, kWhat},
                                     {trial->differs_, sizeof(int), kWhat}});
  const auto fill = [&](const DeviceMemory& memory, uint64_t seed) {
    if (!status.ok()) return;
    status = cuda::ToStatus(
        LaunchFill(operand, memory.data(), memory.bytes() / OperandBytes(operand), seed, stream),
        "making up a product");
  };
  fill(trial->x_, /*seed=*/1);
  fill(trial->w_, /*seed=*/uint64_t{1} << 40);
  if (!status.ok()) return status;
  return trial;
}

absl::Status MatmulTrial::Expect(int rows_at_once, Multiply multiply) {
  return MultiplyAll(rows_at_once, multiply, expected_.as<float>());
}

absl::StatusOr<bool> MatmulTrial::HasExpectedBits(absl::Span<const int> rows_at_once, Multiply multiply) {
  absl::Status status =
      cuda::ToStatus(cudaMemsetAsync(differs_.data(), 0, differs_.bytes(), stream_), "comparing");
  for (const int rows : rows_at_once) {
    if (status.ok()) status = MultiplyAll(rows, multiply, found_.as<float>());
    if (!status.ok()) return status;
    status = cuda::ToStatus(LaunchCompare(expected_.as<float>(), found_.as<float>(),
                                          expected_.bytes() / sizeof(float), differs_.as<int>(), stream_),
                            "comparing");
  }
  int differs = 0;
  if (status.ok())
    status = cuda::ToStatus(
        cudaMemcpyAsync(&differs, differs_.data(), sizeof(differs), cudaMemcpyDeviceToHost, stream_),
        "comparing");
  if (status.ok()) status = cuda::ToStatus(cudaStreamSynchronize(stream_), "comparing");
  if (!status.ok()) return status;
  return differs == 0;
}

absl::Status MatmulTrial::MultiplyAll(int rows_at_once, Multiply multiply, float* y) {
  absl::Status status;
  for (int first = 0; first < kRows && status.ok(); first += rows_at_once) {
    const size_t row = static_cast<size_t>(first);
    status = multiply(x_.data() + row * static_cast<size_t>(k_) * OperandBytes(operand_), w_.data(),
                      y + row * static_cast<size_t>(n_), std::min(rows_at_once, kRows - first));
  }
  return status;
}

// How many of cuBLASLt's recommendations are tried.
constexpr int kRecommendations = 8;

// More rows at once do not make a product faster: from here on it is bound by arithmetic.
constexpr int kMostRows = MatmulTrial::kRows;

// Launches of these sizes show whether a row depends on the others.
constexpr int kFewSizes[] = {2 * kRowTile, 3 * kRowTile, kManyRows, 11 * kRowTile, kMostRows};
constexpr int kManySizes[] = {kManyRows, kManyRows + kRowTile, 2 * kManyRows, kMostRows};

absl::StatusOr<std::string> GpuName() {
  int device = 0;
  cudaDeviceProp properties;
  absl::Status status = cuda::ToStatus(cudaGetDevice(&device), "asking for the device");
  if (status.ok())
    status = cuda::ToStatus(cudaGetDeviceProperties(&properties, device), "asking for the device");
  if (!status.ok()) return status;
  return std::string(properties.name);
}

template <class T>
T Attribute(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value{};
  size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), &written);
  return value;
}

// The algorithm as it is stored.
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

absl::StatusOr<std::unique_ptr<Matmul>> Matmul::Create(Operand operand, const std::string& choices_file,
                                                       cudaStream_t stream) {
  std::unique_ptr<Matmul> matmul(new Matmul(operand, choices_file, stream));
  matmul->choices_ = {.gpu = "",
                      .cublas = static_cast<int>(cublasLtGetVersion()),
                      .operand = operand == Operand::kFp8 ? "fp8" : "bfloat16",
                      .products = {}};
  absl::Status status = Assign(GpuName(), matmul->choices_.gpu);
  if (status.ok() && !choices_file.empty()) {
    status = Assign(ReadMatmulChoices(choices_file, matmul->choices_), matmul->stored_);
  }
  if (status.ok()) status = ToStatus(cublasLtCreate(&matmul->handle_), "starting");
  if (!status.ok()) return status;
  status = ToStatus(cublasLtMatmulDescCreate(&matmul->product_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "starting");
  if (!status.ok()) return status;
  const cublasOperation_t transposed = CUBLAS_OP_T;
  status = ToStatus(cublasLtMatmulDescSetAttribute(matmul->product_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                                   sizeof(transposed)),
                    "describing a product");
  if (status.ok()) status = AllocateAll({{matmul->workspace_, kWorkspaceBytes, "matrix products"}});
  if (!status.ok()) return status;
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
  const absl::StatusOr<Shape> shape = stored_ ? Restore(n, k) : Choose(n, k);
  if (!shape.ok()) return shape.status();
  shapes_.push_back(*shape);
  choices_.products.push_back({.n = n,
                               .k = k,
                               .few_rows = ToStored(shape->few_rows.algorithm),
                               .many_rows = ToStored(shape->many_rows.algorithm)});
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
  const std::optional<Algorithm> few_rows = Runnable(n, k, FromStored(stored->few_rows));
  const std::optional<Algorithm> many_rows = Runnable(n, k, FromStored(stored->many_rows));
  if (!few_rows || !many_rows) return refuse("cuBLASLt does not run the algorithm for products");
  return Shape{n, k, *few_rows, *many_rows};
}

absl::StatusOr<Matmul::Shape> Matmul::Choose(int n, int k) {
  const absl::StatusOr<std::unique_ptr<MatmulTrial>> trial = MatmulTrial::Create(operand_, n, k, stream_);
  if (!trial.ok()) return trial.status();
  const absl::StatusOr<std::vector<Algorithm>> few_rows = Recommended(n, k, kRowTile);
  if (!few_rows.ok()) return few_rows.status();
  const absl::StatusOr<std::vector<Algorithm>> many_rows = Recommended(n, k, kManyRows);
  if (!many_rows.ok()) return many_rows.status();
  const auto with = [&](const Algorithm& algorithm) {
    return [&](const void* x, const void* w, float* y, int rows) {
      return Multiply({n, k, algorithm, algorithm}, x, w, y, rows);
    };
  };
  absl::Status error;  // of an algorithm that runs some numbers of rows only
  const auto has_expected_bits = [&](absl::Span<const int> sizes, const Algorithm& algorithm) {
    const absl::StatusOr<bool> same = (*trial)->HasExpectedBits(sizes, with(algorithm));
    error.Update(same.status());
    if (!same.ok()) cudaGetLastError();  // or the next launch would report it
    return same.ok() && *same;
  };
  for (const Algorithm& few : *few_rows) {
    const absl::Status ran = (*trial)->Expect(kRowTile, with(few));
    error.Update(ran);
    if (!ran.ok() || !has_expected_bits(kFewSizes, few)) continue;
    const auto many = std::find_if(many_rows->begin(), many_rows->end(), [&](const Algorithm& algorithm) {
      return has_expected_bits(kManySizes, algorithm);
    });
    return Shape{n, k, few, many == many_rows->end() ? few : *many};
  }
  if (!error.ok()) return error;
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
  const absl::Status status =
      ToStatus(cublasLtMatmulAlgoGetHeuristic(handle_, product_, &layouts.w, &layouts.x, &layouts.y,
                                              &layouts.y, &preference, kRecommendations, found, &count),
               absl::StrCat("choosing an algorithm for ", n, " x ", k));
  if (!status.ok()) return status;
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
  absl::Status status;
  for (int first = 0, part = 0; first < rows && status.ok(); first += part) {
    const Algorithm& algorithm = rows - first < kManyRows ? shape.few_rows : shape.many_rows;
    part = std::min(algorithm.rows_at_once, rows - first);
    Layouts layouts(operand_, shape.n, shape.k, part);
    const char* const from = static_cast<const char*>(x) + static_cast<size_t>(first) *
                                                               static_cast<size_t>(shape.k) *
                                                               OperandBytes(operand_);
    float* const to = y + static_cast<size_t>(first) * static_cast<size_t>(shape.n);
    status = ToStatus(
        cublasLtMatmul(handle_, product_, &one, w, &layouts.w, from, &layouts.x, &zero, to, &layouts.y, to,
                       &layouts.y, &algorithm.algorithm, workspace_.data(), workspace_.bytes(), stream_),
        absl::StrCat("multiplying by ", shape.n, " x ", shape.k, " for ", part, " rows"));
  }
  return status;
}

}  // namespace outrider::cuda
