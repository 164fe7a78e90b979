#include "common/engine/torch/weights.h"

#include "common/engine/decoder/tensor_names.h"

namespace outrider::libtorch {
namespace {

at::ScalarType TypeOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return at::kFloat;
    case ElementType::kBFloat16:
      return at::kBFloat16;
    case ElementType::kFloat16:
      return at::kHalf;
  }
  return at::kFloat;
}

// After the first error, all calls do nothing.
class Loader {
 public:
  Loader(const TensorSource& source, const at::TensorOptions& options) : source_(source), options_(options) {}

  at::Tensor Norm(const StoredTensor& norm) { return Read(norm, options_.dtype(at::kFloat)); }
  at::Tensor Matrix(const StoredTensor& matrix) { return Read(matrix, options_); }
  // The rows of all parts, in order.
  at::Tensor Matrix(const StoredMatrix& matrix) {
    std::vector<at::Tensor> parts;
    for (const StoredTensor& part : matrix.parts) parts.push_back(Matrix(part));
    if (!status_.ok()) return {};
    return parts.size() == 1 ? parts[0] : at::cat(parts);
  }

  const absl::Status& status() const { return status_; }

 private:
  // A copy, so that nothing that happens to the file afterwards matters.
  at::Tensor Read(const StoredTensor& tensor, const at::TensorOptions& options) {
    const TensorView view = source_.Get(tensor.name, tensor.shape, status_);
    if (!status_.ok()) return {};
    const at::Tensor stored = at::from_blob(const_cast<char*>(view.data), view.shape, TypeOf(view.type));
    return stored.to(options, /*non_blocking=*/false, /*copy=*/true);
  }

  const TensorSource& source_;
  const at::TensorOptions options_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Weights> LoadWeights(const TensorSource& source, const DecoderSpec& spec,
                                    const at::TensorOptions& options,
                                    const std::function<void(double)>& progress) {
  const DecoderTensors tensors = TensorsOf(spec);
  Loader loader(source, options);
  Weights weights;
  const auto count = [&](std::initializer_list<at::Tensor> added) {
    for (const at::Tensor& tensor : added) {
      if (tensor.defined()) weights.bytes += tensor.nbytes();
    }
  };
  weights.embedding = loader.Matrix(tensors.embedding);
  for (const LayerTensors& layer : tensors.layers) {
    weights.layers.push_back({.attention_norm = loader.Norm(layer.attention_norm),
                              .qkv = loader.Matrix(layer.qkv),
                              .attention_out = loader.Matrix(layer.attention_out),
                              .mlp_norm = loader.Norm(layer.mlp_norm),
                              .gate_up = loader.Matrix(layer.gate_up),
                              .mlp_out = loader.Matrix(layer.mlp_out)});
    const LayerWeights& loaded = weights.layers.back();
    count({loaded.attention_norm, loaded.qkv, loaded.attention_out, loaded.mlp_norm, loaded.gate_up,
           loaded.mlp_out});
    const double layers_done = static_cast<double>(weights.layers.size());
    if (progress && loader.status().ok()) progress(layers_done / (spec.layers + 1));
  }
  weights.final_norm = loader.Norm(tensors.final_norm);
  weights.head = spec.tie_word_embeddings ? weights.embedding : loader.Matrix(tensors.head);
  if (!loader.status().ok()) return loader.status();
  count({weights.final_norm, weights.head});
  if (progress) progress(1);
  return weights;
}

}  // namespace outrider::libtorch
