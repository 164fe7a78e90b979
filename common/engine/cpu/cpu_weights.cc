#include "common/engine/cpu/cpu_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/engine/cpu/packing.h"
#include "common/engine/decoder/elements.h"
#include "common/engine/decoder/tensor_names.h"

namespace outrider {
namespace {

// Collects everything that must be packed, so that one allocation of the right size can hold it.
class Loader {
 public:
  Loader(const TensorSource& source, Storage storage) : source_(source), storage_(storage) {}

  // After the first error, all calls do nothing.
  TensorView Get(const StoredTensor& tensor) { return source_.Get(tensor.name, tensor.shape, status_); }

  // Adds the rows of all parts, in order.
  void AddMatrix(const StoredMatrix& matrix, PackedMatrix* to) {
    std::vector<TensorView> parts = GetParts(matrix);
    if (status_.ok()) Add(Concatenated(std::move(parts)), to);
  }

  // Adds both parts with alternating panels.
  void AddInterleaved(const StoredMatrix& matrix, PackedMatrix* to) {
    std::vector<TensorView> parts = GetParts(matrix);
    if (status_.ok()) Add(InterleavedPanels(std::move(parts[0]), std::move(parts[1])), to);
  }

  void AddNorm(const StoredTensor& norm, const float** to) { AddVector({norm}, to); }

  // Adds the elements of all parts, in order.
  void AddVector(const std::vector<StoredTensor>& parts, const float** to) {
    size_t size = 0;
    for (const StoredTensor& part : parts) size += static_cast<size_t>(part.shape[0]);
    size_t offset = Reserve(size * sizeof(float));
    for (const StoredTensor& part : parts) {
      vectors_.push_back({Get(part), static_cast<int>(part.shape[0]), to, offset});
      offset += static_cast<size_t>(part.shape[0]) * sizeof(float);
      to = nullptr;
    }
  }

  absl::StatusOr<Buffer> PackAll(ThreadPool& pool, const std::function<void(double)>& progress) {
    if (!status_.ok()) return status_;
    absl::StatusOr<Buffer> memory = Buffer::Allocate(bytes_, "the weights");
    if (!memory.ok()) return memory.status();
    for (const Vector& vector : vectors_) {
      float* to = reinterpret_cast<float*>(memory->data() + vector.offset);
      ReadElements(vector.source, 0, vector.size, to);
      if (vector.to != nullptr) *vector.to = to;
    }
    for (const Matrix& matrix : matrices_) {
      char* to = memory->data() + matrix.offset;
      Pack(matrix.source, storage_, pool, to);
      matrix.to->data = to;
      if (progress) {
        const size_t done = matrix.offset + PackedBytes(matrix.to->n, matrix.to->k, storage_);
        progress(static_cast<double>(done) / static_cast<double>(bytes_));
      }
    }
    if (progress) progress(1);
    return memory;
  }

 private:
  struct Matrix {
    MatrixSource source;
    PackedMatrix* to;
    size_t offset;
  };
  struct Vector {
    TensorView source;
    int size;
    const float** to;  // null for a part that is not the first
    size_t offset;
  };

  std::vector<TensorView> GetParts(const StoredMatrix& matrix) {
    std::vector<TensorView> parts;
    for (const StoredTensor& part : matrix.parts) {
      parts.push_back(Get(part));
      if (status_.ok() && parts.back().type != parts[0].type) {
        status_ =
            absl::InvalidArgumentError(absl::StrCat(matrix.name, ": its weights have different dtypes"));
      }
    }
    return parts;
  }

  void Add(MatrixSource source, PackedMatrix* to) {
    *to = {nullptr, source.n(), source.k};
    const size_t bytes = PackedBytes(to->n, to->k, storage_);
    matrices_.push_back({std::move(source), to, Reserve(bytes)});
  }

  size_t Reserve(size_t bytes) {
    const size_t offset = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return offset;
  }

  const TensorSource& source_;
  const Storage storage_;
  absl::Status status_;
  std::vector<Matrix> matrices_;
  std::vector<Vector> vectors_;
  size_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<CpuWeights> LoadCpuWeights(const TensorSource& source, const DecoderSpec& spec,
                                          Storage storage, ThreadPool& pool,
                                          const std::function<void(double)>& progress) {
  CpuWeights weights;
  weights.storage = storage;
  Loader loader(source, storage);
  const DecoderTensors tensors = TensorsOf(spec);
  weights.embedding = loader.Get(tensors.embedding);
  weights.layers.resize(tensors.layers.size());
  for (size_t i = 0; i < tensors.layers.size(); ++i) {
    const LayerTensors& from = tensors.layers[i];
    CpuLayer& to = weights.layers[i];
    loader.AddNorm(from.attention_norm, &to.attention_norm);
    loader.AddMatrix(from.qkv, &to.qkv);
    if (!from.qkv_bias.empty()) loader.AddVector(from.qkv_bias, &to.qkv_bias);
    if (!from.qk_norm.empty()) {
      loader.AddNorm(from.qk_norm[0], &to.query_norm);
      loader.AddNorm(from.qk_norm[1], &to.key_norm);
    }
    loader.AddMatrix(from.attention_out, &to.attention_out);
    loader.AddNorm(from.mlp_norm, &to.mlp_norm);
    loader.AddInterleaved(from.gate_up, &to.gate_up);
    loader.AddMatrix(from.mlp_out, &to.mlp_out);
  }
  loader.AddNorm(tensors.final_norm, &weights.final_norm);
  loader.AddMatrix(tensors.head, &weights.head);
  absl::StatusOr<Buffer> memory = loader.PackAll(pool, progress);
  if (!memory.ok()) return memory.status();
  weights.memory = *std::move(memory);
  absl::StatusOr<Buffer> copy = Buffer::Allocate(weights.embedding.bytes(), "the embedding");
  if (!copy.ok()) return copy.status();
  std::memcpy(copy->data(), weights.embedding.data, copy->bytes());
  weights.embedding.data = copy->data();
  weights.embedding_memory = *std::move(copy);
  return weights;
}

}  // namespace outrider
