#include "common/engine/cpu/cpu_weights.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/engine/cpu/packing.h"
#include "common/engine/decoder/elements.h"
#include "common/engine/decoder/tensor_names.h"

namespace outrider {
namespace {

TensorView AsFloat32(const TensorView& tensor) {
  const auto values = std::make_shared<std::vector<float>>(tensor.bytes() / tensor.element_bytes());
  ReadElements(tensor, 0, static_cast<int>(values->size()), values->data());
  return {ElementType::kFloat32, tensor.shape, reinterpret_cast<const char*>(values->data()), values};
}

// Collects everything that must be packed, so that one allocation of the right size can hold it. A matrix is
// read when it is packed, and then released: the source may have made it for us.
class Loader {
 public:
  Loader(const TensorSource& source, Storage storage) : source_(source), storage_(storage) {}

  // After the first error, all calls do nothing.
  TensorView Get(const StoredTensor& tensor) { return source_.Get(tensor.name, tensor.shape, status_); }

  // Adds the rows of all parts, in order.
  void AddMatrix(const StoredMatrix& matrix, PackedMatrix* to) {
    if (IsThere(matrix)) Add(matrix.parts, Concatenated(Shapes(matrix)), to);
  }

  // Adds both parts with alternating panels.
  void AddInterleaved(const StoredMatrix& matrix, PackedMatrix* to) {
    if (!IsThere(matrix)) return;
    std::vector<TensorView> shapes = Shapes(matrix);
    Add(matrix.parts, InterleavedPanels(std::move(shapes[0]), std::move(shapes[1])), to);
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
    for (Matrix& matrix : matrices_) {
      char* to = memory->data() + matrix.offset;
      matrix.source.tensors = GetParts(matrix.parts);
      if (!status_.ok()) return status_;
      Pack(matrix.source, storage_, pool, to);
      matrix.source.tensors.clear();
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
    std::vector<StoredTensor> parts;
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

  // Checks before anything is allocated: sizes are only known to be sensible if the files have them.
  bool IsThere(const StoredMatrix& matrix) {
    for (const StoredTensor& part : matrix.parts) {
      if (status_.ok()) status_ = source_.Check(part.name, part.shape);
    }
    return status_.ok();
  }

  // Views without data.
  static std::vector<TensorView> Shapes(const StoredMatrix& matrix) {
    std::vector<TensorView> views;
    for (const StoredTensor& part : matrix.parts) views.emplace_back().shape = part.shape;
    return views;
  }

  // All of one type: a checkpoint may have quantised only some of them.
  std::vector<TensorView> GetParts(const std::vector<StoredTensor>& parts) {
    std::vector<TensorView> views;
    for (const StoredTensor& part : parts) views.push_back(Get(part));
    const bool differ = std::any_of(views.begin(), views.end(),
                                    [&](const TensorView& view) { return view.type != views[0].type; });
    if (differ && status_.ok()) std::transform(views.begin(), views.end(), views.begin(), AsFloat32);
    return views;
  }

  void Add(const std::vector<StoredTensor>& parts, MatrixSource source, PackedMatrix* to) {
    *to = {nullptr, source.n(), source.k};
    const size_t bytes = PackedBytes(to->n, to->k, storage_);
    matrices_.push_back({parts, std::move(source), to, Reserve(bytes)});
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
  if (spec.outer_norms) weights.embedding = loader.Get(tensors.embedding);
  weights.layers.resize(tensors.layers.size());
  for (size_t i = 0; i < tensors.layers.size(); ++i) {
    const LayerTensors& from = tensors.layers[i];
    CpuLayer& to = weights.layers[i];
    if (i > 0 || spec.outer_norms) loader.AddNorm(from.attention_norm, &to.attention_norm);
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
  if (spec.outer_norms) loader.AddNorm(tensors.final_norm, &weights.final_norm);
  if (spec.outer_norms) loader.AddMatrix(tensors.head, &weights.head);
  absl::StatusOr<Buffer> memory = loader.PackAll(pool, progress);
  if (!memory.ok()) return memory.status();
  weights.memory = *std::move(memory);
  if (!spec.outer_norms) return weights;
  absl::StatusOr<Buffer> copy = Buffer::Allocate(weights.embedding.bytes(), "the embedding");
  if (!copy.ok()) return copy.status();
  std::memcpy(copy->data(), weights.embedding.data, copy->bytes());
  weights.embedding.data = copy->data();
  weights.embedding.memory = nullptr;
  weights.embedding_memory = *std::move(copy);
  return weights;
}

}  // namespace outrider
