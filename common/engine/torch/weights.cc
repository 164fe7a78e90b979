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

// Counts the bytes of what it loads. After the first error, all calls do nothing.
class Loader {
 public:
  Loader(const TensorSource& source, const DecoderSpec& spec, const at::TensorOptions& options)
      : source_(source), spec_(spec), options_(options) {}

  at::Tensor Norm(const StoredTensor& norm) {
    const at::Tensor read = Read(norm, options_.dtype(at::kFloat));
    return Count(read.defined() && spec_.norms_plus_one ? read + 1 : read);
  }
  // Element i of a list that is empty where the model has no such norms.
  at::Tensor Norm(const std::vector<StoredTensor>& norms, size_t i) {
    return norms.empty() ? at::Tensor() : Norm(norms[i]);
  }
  // The rows of all parts, in order; undefined if there are none.
  at::Tensor Parts(const std::vector<StoredTensor>& parts) {
    std::vector<at::Tensor> tensors;
    for (const StoredTensor& part : parts) tensors.push_back(Read(part, options_));
    if (!status_.ok() || tensors.empty()) return {};
    return Count(tensors.size() == 1 ? tensors[0] : at::cat(tensors));
  }
  at::Tensor Embedding(const StoredTensor& table) { return Read(table, options_); }

  LayerWeights Layer(const LayerTensors& layer) {
    return {.attention_norm = Norm(layer.attention_norm),
            .qkv = Parts(layer.qkv.parts),
            .qkv_bias = Parts(layer.qkv_bias),
            .query_norm = Norm(layer.qk_norm, 0),
            .key_norm = Norm(layer.qk_norm, 1),
            .attention_out = Parts(layer.attention_out.parts),
            .attention_out_norm = Norm(layer.output_norms, 0),
            .mlp_norm = Norm(layer.mlp_norm),
            .gate_up = Parts(layer.gate_up.parts),
            .mlp_out = Parts(layer.mlp_out.parts),
            .mlp_out_norm = Norm(layer.output_norms, 1)};
  }

  const absl::Status& status() const { return status_; }
  size_t bytes() const { return bytes_; }

 private:
  // A copy, so that nothing that happens to the file afterwards matters.
  at::Tensor Read(const StoredTensor& tensor, const at::TensorOptions& options) {
    const TensorView view = source_.Get(tensor.name, tensor.shape, status_);
    if (!status_.ok()) return {};
    const at::Tensor stored = at::from_blob(const_cast<char*>(view.data), view.shape, TypeOf(view.type));
    return stored.to(options, /*non_blocking=*/false, /*copy=*/true);
  }
  at::Tensor Count(at::Tensor tensor) {
    if (tensor.defined()) bytes_ += tensor.nbytes();
    return tensor;
  }

  const TensorSource& source_;
  const DecoderSpec& spec_;
  const at::TensorOptions options_;
  absl::Status status_;
  size_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<Weights> LoadWeights(const TensorSource& source, const DecoderSpec& spec,
                                    const at::TensorOptions& options,
                                    const std::function<void(double)>& progress) {
  const DecoderTensors tensors = TensorsOf(spec);
  Loader loader(source, spec, options);
  Weights weights;
  weights.embedding = loader.Embedding(tensors.embedding);
  for (const LayerTensors& layer : tensors.layers) {
    weights.layers.push_back(loader.Layer(layer));
    const double layers_done = static_cast<double>(weights.layers.size());
    if (progress && loader.status().ok()) progress(layers_done / (spec.layers + 1));
  }
  weights.final_norm = loader.Norm(tensors.final_norm);
  weights.head = spec.tie_word_embeddings ? weights.embedding : loader.Parts(tensors.head.parts);
  if (!loader.status().ok()) return loader.status();
  weights.bytes = loader.bytes() + (spec.tie_word_embeddings ? weights.head.nbytes() : 0);
  if (progress) progress(1);
  return weights;
}

}  // namespace outrider::libtorch
