#include "common/engine/cuda/decoder_layers.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "common/engine/cuda/layer_kernels.h"
#include "common/spec/status.h"

namespace outrider::cuda {
namespace {

// Size of the page-locked staging buffer for uploads.
constexpr size_t kStagingBytes = size_t{32} << 20;

// Loads vectors and matrices, and adds the device memory that holds them to `memory`.
class Loader {
 public:
  // `staging` has kStagingBytes.
  Loader(const TensorSource& source, Operand operand, Matmul& matmul, cudaStream_t stream,
         const PinnedMemory& staging, std::vector<DeviceMemory>& memory)
      : source_(source),
        operand_(operand),
        matmul_(matmul),
        stream_(stream),
        staging_(staging),
        memory_(memory) {}

  // Uploads the elements of all parts in order. There is at least one part.
  absl::StatusOr<const float*> AddVector(const std::vector<StoredTensor>& parts) {
    float* const staged = staging_.as<float>();
    size_t size = 0;
    for (const StoredTensor& part : parts) {
      const TensorView view = OUTRIDER_TRY(source_.Get(part.name, part.shape));
      ReadElements(view, 0, static_cast<int>(view.elements()), staged + size);
      size += view.elements();
    }
    DeviceMemory memory = OUTRIDER_TRY(DeviceMemory::Allocate(sizeof(float) * size, parts[0].name));
    OUTRIDER_TRY(UploadStaged(memory.data(), memory.bytes()));
    memory_.push_back(std::move(memory));
    return memory_.back().as<const float>();
  }

  // Uploads the rows of all parts, each [*, k], in order. If `table` is not null, it already has these rows.
  absl::StatusOr<Matrix> AddMatrix(const StoredMatrix& stored, const __nv_bfloat16* table = nullptr) {
    Matrix matrix{.k = static_cast<int>(stored.parts[0].shape[1])};
    for (const StoredTensor& part : stored.parts) matrix.n += static_cast<int>(part.shape[0]);
    matrix.plan = OUTRIDER_TRY(matmul_.Plan(matrix.n, matrix.k));
    DeviceMemory memory;
    if (table == nullptr) {
      memory = OUTRIDER_TRY(Upload(stored));
      table = memory.as<const __nv_bfloat16>();
    }
    matrix.data = table;
    if (operand_ == Operand::kFp8) {
      const size_t n = static_cast<size_t>(matrix.n), k = static_cast<size_t>(matrix.k);
      DeviceMemory values = OUTRIDER_TRY(DeviceMemory::Allocate(n * k, stored.name));
      DeviceMemory scales = OUTRIDER_TRY(DeviceMemory::Allocate(sizeof(float) * n, stored.name));
      matrix.data = values.data();
      matrix.scales = scales.as<const float>();
      LaunchQuantize(table, {values.data(), scales.as<float>()}, matrix.n, matrix.k, stream_);
      OUTRIDER_TRY(ToStatus(cudaGetLastError(), "making fp8 weights"));
      // The uploaded rows are about to be freed.
      OUTRIDER_TRY(ToStatus(cudaStreamSynchronize(stream_), "making fp8 weights"));
      memory_.push_back(std::move(scales));
      memory = std::move(values);
    }
    memory_.push_back(std::move(memory));
    return matrix;
  }

  // Uploads the rows of all parts as bfloat16.
  absl::StatusOr<DeviceMemory> Upload(const StoredMatrix& matrix) {
    int64_t rows = 0;
    for (const StoredTensor& part : matrix.parts) rows += part.shape[0];
    const size_t elements = static_cast<size_t>(rows * matrix.parts[0].shape[1]);
    DeviceMemory memory = OUTRIDER_TRY(DeviceMemory::Allocate(2 * elements, matrix.name));
    char* to = memory.data();
    for (const StoredTensor& part : matrix.parts) {
      const TensorView view = OUTRIDER_TRY(source_.Get(part.name, part.shape));
      // The staging buffer holds the elements as bfloat16 and, behind them, as float32.
      const int64_t at_once = static_cast<int64_t>(kStagingBytes / (2 * sizeof(float)));
      const int64_t count = static_cast<int64_t>(view.elements());
      for (int64_t first = 0; first < count; first += at_once) {
        const int some = static_cast<int>(std::min(at_once, count - first));
        const size_t bytes = 2 * static_cast<size_t>(some);
        if (view.type == ElementType::kBFloat16) {
          std::memcpy(staging_.data(), view.data + 2 * first, bytes);
        } else {
          float* const floats = staging_.as<float>() + at_once;
          ReadElements(view, first, some, floats);
          std::transform(floats, floats + some, staging_.as<__nv_bfloat16>(),
                         [](float value) { return __float2bfloat16(value); });
        }
        OUTRIDER_TRY(UploadStaged(to, bytes));
        to += bytes;
      }
    }
    return memory;
  }

 private:
  // Uploads the first `bytes` of the staging buffer. Waits, because the buffer is overwritten next.
  absl::Status UploadStaged(char* to, size_t bytes) {
    constexpr char kUploading[] = "uploading weights";
    OUTRIDER_TRY(
        ToStatus(cudaMemcpyAsync(to, staging_.data(), bytes, cudaMemcpyHostToDevice, stream_), kUploading));
    return ToStatus(cudaStreamSynchronize(stream_), kUploading);
  }

  const TensorSource& source_;
  const Operand operand_;
  Matmul& matmul_;
  const cudaStream_t stream_;
  const PinnedMemory& staging_;
  std::vector<DeviceMemory>& memory_;
};

}  // namespace

absl::StatusOr<Weights> LoadWeights(const TensorSource& source, const DecoderConfig& spec, Operand operand,
                                    Matmul& matmul, cudaStream_t stream,
                                    const std::function<void(double)>& progress) {
  const PinnedMemory staging = OUTRIDER_TRY(PinnedMemory::Allocate(kStagingBytes, "uploads"));
  const DecoderTensors tensors = TensorsOf(spec);
  Weights weights;
  Loader loader(source, operand, matmul, stream, staging, weights.memory);
  DeviceMemory embedding = OUTRIDER_TRY(loader.Upload({"the embedding", {tensors.embedding}}));
  weights.embedding = embedding.as<const __nv_bfloat16>();
  weights.memory.push_back(std::move(embedding));
  for (const LayerTensors& layer : tensors.layers) {
    Layer& to = weights.layers.emplace_back();
    to.attention_norm = OUTRIDER_TRY(loader.AddVector({layer.attention_norm}));
    to.qkv = OUTRIDER_TRY(loader.AddMatrix(layer.qkv));
    if (spec.qkv_bias) to.qkv_bias = OUTRIDER_TRY(loader.AddVector(layer.qkv_bias));
    if (spec.qk_norm) to.query_norm = OUTRIDER_TRY(loader.AddVector({layer.qk_norm[0]}));
    if (spec.qk_norm) to.key_norm = OUTRIDER_TRY(loader.AddVector({layer.qk_norm[1]}));
    to.attention_out = OUTRIDER_TRY(loader.AddMatrix(layer.attention_out));
    to.mlp_norm = OUTRIDER_TRY(loader.AddVector({layer.mlp_norm}));
    to.gate_up = OUTRIDER_TRY(loader.AddMatrix(layer.gate_up));
    to.mlp_out = OUTRIDER_TRY(loader.AddMatrix(layer.mlp_out));
    if (progress) progress(static_cast<double>(weights.layers.size()) / (spec.layers + 1));
  }
  weights.final_norm = OUTRIDER_TRY(loader.AddVector({tensors.final_norm}));
  const bool tied = spec.tie_word_embeddings && spec.head_tokens.empty();
  weights.head = OUTRIDER_TRY(loader.AddMatrix(tensors.head, tied ? weights.embedding : nullptr));
  OUTRIDER_TRY(ToStatus(cudaStreamSynchronize(stream), "loading weights"));
  for (const DeviceMemory& memory : weights.memory) weights.bytes += memory.bytes();
  // A step reads only single rows of the embedding, unless the embedding is also the head.
  if (weights.head.data != weights.embedding) weights.bytes -= weights.memory[0].bytes();
  if (progress) progress(1);
  return weights;
}

}  // namespace outrider::cuda
