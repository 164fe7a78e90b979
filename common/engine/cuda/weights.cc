#include "common/engine/cuda/decoder_layers.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/engine/cuda/layer_kernels.h"

namespace outrider::cuda {
namespace {

// Size of the page-locked staging buffer for uploads.
constexpr size_t kStagingBytes = size_t{32} << 20;

// After the first error, all calls do nothing.
class Loader {
 public:
  Loader(const TensorSource& source, Operand operand, Matmul& matmul, cudaStream_t stream)
      : source_(source), operand_(operand), matmul_(matmul), stream_(stream) {
    Store(PinnedMemory::Allocate(kStagingBytes, "uploads"), staging_);
  }

  const float* AddNorm(const StoredTensor& norm) { return AddVector({norm}); }

  // The elements of all parts, in order; null if there are none.
  const float* AddVector(const std::vector<StoredTensor>& parts) {
    if (parts.empty()) return nullptr;
    std::vector<TensorView> views;
    int64_t size = 0;
    for (const StoredTensor& part : parts) {
      views.push_back(Get(part));
      size += part.shape[0];
    }
    char* const to = Allocate(sizeof(float) * static_cast<size_t>(size), parts[0].name);
    if (!status_.ok()) return nullptr;
    float* staged = staging_.as<float>();
    for (const TensorView& view : views) {
      ReadElements(view, 0, static_cast<int>(view.shape[0]), staged);
      staged += view.shape[0];
    }
    Upload(to, sizeof(float) * static_cast<size_t>(size));
    return reinterpret_cast<const float*>(to);
  }

  const __nv_bfloat16* AddTable(const std::string& name, const StoredTensor& table) {
    const TensorView view = Get(table);
    char* const to = AllocateUncounted(2 * view.elements(), name);
    UploadTensor(view, to);
    return reinterpret_cast<const __nv_bfloat16*>(to);
  }

  // The rows of all parts, each [*, k], in order.
  Matrix AddMatrix(const StoredMatrix& stored) {
    const std::string& name = stored.name;
    std::vector<TensorView> parts;
    for (const StoredTensor& part : stored.parts) parts.push_back(Get(part));
    if (!status_.ok()) return {};
    size_t elements = 0;
    for (const TensorView& part : parts) elements += part.elements();
    const int k = static_cast<int>(parts[0].shape[1]);
    Matrix matrix = Plan(static_cast<int>(elements / static_cast<size_t>(k)), k);
    DeviceMemory unscaled;
    char* to;
    if (operand_ == Operand::kFp8) {
      Store(DeviceMemory::Allocate(2 * elements, name), unscaled);
      to = unscaled.data();
    } else {
      to = Allocate(2 * elements, name);
    }
    matrix.data = to;
    for (const TensorView& part : parts) {
      UploadTensor(part, to);
      to += 2 * part.elements();
    }
    if (operand_ != Operand::kFp8) return matrix;
    Quantize(name, unscaled.data(), matrix);
    // `unscaled` is about to be freed.
    if (status_.ok()) status_ = ToStatus(cudaStreamSynchronize(stream_), "making fp8 weights");
    return matrix;
  }

  // A matrix with the weights of `table`: the table itself, or quantised to fp8.
  Matrix ShareTable(const StoredMatrix& stored, const __nv_bfloat16* table) {
    const std::vector<int64_t>& shape = stored.parts[0].shape;
    Matrix matrix = Plan(static_cast<int>(shape[0]), static_cast<int>(shape[1]));
    matrix.data = table;
    if (operand_ == Operand::kBFloat16) {
      bytes_ += 2 * static_cast<size_t>(matrix.n) * static_cast<size_t>(matrix.k);
    } else if (status_.ok()) {
      Quantize(stored.name, reinterpret_cast<const char*>(table), matrix);
    }
    return matrix;
  }

  const absl::Status& status() const { return status_; }
  std::vector<DeviceMemory> TakeMemory() { return std::move(memory_); }
  // Weights::bytes.
  size_t bytes() const { return bytes_; }

 private:
  TensorView Get(const StoredTensor& tensor) { return source_.Get(tensor.name, tensor.shape, status_); }

  template <class T>
  void Store(absl::StatusOr<T> allocated, T& to) {
    if (status_.ok()) status_ = Assign(std::move(allocated), to);
  }

  char* Allocate(size_t bytes, const std::string& name) {
    bytes_ += bytes;
    return AllocateUncounted(bytes, name);
  }
  char* AllocateUncounted(size_t bytes, const std::string& name) {
    DeviceMemory memory;
    Store(DeviceMemory::Allocate(bytes, name), memory);
    memory_.push_back(std::move(memory));
    return memory_.back().data();
  }

  Matrix Plan(int n, int k) {
    Matrix matrix{.data = nullptr, .scales = nullptr, .n = n, .k = k, .plan = 0};
    if (!status_.ok()) return matrix;
    const absl::StatusOr<int> plan = matmul_.Plan(n, k);
    if (plan.ok()) {
      matrix.plan = *plan;
    } else {
      status_ = plan.status();
    }
    return matrix;
  }

  // Uploads the first `bytes` of the staging buffer.
  void Upload(char* to, size_t bytes) {
    if (!status_.ok()) return;
    status_ = ToStatus(cudaMemcpyAsync(to, staging_.data(), bytes, cudaMemcpyHostToDevice, stream_),
                       "uploading weights");
    // The staging buffer is overwritten at once.
    if (status_.ok()) status_ = ToStatus(cudaStreamSynchronize(stream_), "uploading weights");
  }

  void UploadTensor(const TensorView& tensor, char* to) {
    const int64_t count = status_.ok() ? static_cast<int64_t>(tensor.elements()) : 0;
    // The staging buffer holds the elements as bfloat16 and, behind them, as float32.
    const int64_t at_once = static_cast<int64_t>(kStagingBytes / (2 * sizeof(float)));
    for (int64_t first = 0; first < count && status_.ok(); first += at_once) {
      const int part = static_cast<int>(std::min(at_once, count - first));
      if (tensor.type == ElementType::kBFloat16) {
        std::memcpy(staging_.data(), tensor.data + 2 * first, 2 * static_cast<size_t>(part));
      } else {
        float* const floats = staging_.as<float>() + at_once;
        ReadElements(tensor, first, part, floats);
        std::transform(floats, floats + part, staging_.as<__nv_bfloat16>(),
                       [](float value) { return __float2bfloat16(value); });
      }
      Upload(to + 2 * first, 2 * static_cast<size_t>(part));
    }
  }

  void Quantize(const std::string& name, const char* from, Matrix& matrix) {
    char* const to = Allocate(static_cast<size_t>(matrix.n) * static_cast<size_t>(matrix.k), name);
    char* const scales = Allocate(sizeof(float) * static_cast<size_t>(matrix.n), name);
    matrix.data = to;
    matrix.scales = reinterpret_cast<const float*>(scales);
    if (!status_.ok()) return;
    LaunchQuantize(reinterpret_cast<const __nv_bfloat16*>(from), {to, reinterpret_cast<float*>(scales)},
                   matrix.n, matrix.k, stream_);
    status_ = ToStatus(cudaGetLastError(), "making fp8 weights");
  }

  const TensorSource& source_;
  const Operand operand_;
  Matmul& matmul_;
  const cudaStream_t stream_;
  absl::Status status_;
  PinnedMemory staging_;
  std::vector<DeviceMemory> memory_;
  size_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<Weights> LoadWeights(const TensorSource& source, const DecoderConfig& spec, Operand operand,
                                    Matmul& matmul, cudaStream_t stream,
                                    const std::function<void(double)>& progress) {
  Loader loader(source, operand, matmul, stream);
  const DecoderTensors tensors = TensorsOf(spec);

  Weights weights;
  weights.embedding = loader.AddTable("the embedding", tensors.embedding);
  for (const LayerTensors& layer : tensors.layers) {
    weights.layers.push_back({.attention_norm = loader.AddNorm(layer.attention_norm),
                              .qkv = loader.AddMatrix(layer.qkv),
                              .qkv_bias = loader.AddVector(layer.qkv_bias),
                              .query_norm = spec.qk_norm ? loader.AddNorm(layer.qk_norm[0]) : nullptr,
                              .key_norm = spec.qk_norm ? loader.AddNorm(layer.qk_norm[1]) : nullptr,
                              .attention_out = loader.AddMatrix(layer.attention_out),
                              .mlp_norm = loader.AddNorm(layer.mlp_norm),
                              .gate_up = loader.AddMatrix(layer.gate_up),
                              .mlp_out = loader.AddMatrix(layer.mlp_out)});
    const double layers_done = static_cast<double>(weights.layers.size());
    if (progress && loader.status().ok()) progress(layers_done / (spec.layers + 1));
  }
  weights.final_norm = loader.AddNorm(tensors.final_norm);
  weights.head = spec.tie_word_embeddings && spec.head_tokens.empty()
                     ? loader.ShareTable(tensors.head, weights.embedding)
                     : loader.AddMatrix(tensors.head);
  absl::Status status = loader.status();
  if (status.ok()) status = ToStatus(cudaStreamSynchronize(stream), "loading weights");
  if (!status.ok()) return status;
  weights.memory = loader.TakeMemory();
  weights.bytes = loader.bytes();
  if (progress) progress(1);
  return weights;
}

}  // namespace outrider::cuda
