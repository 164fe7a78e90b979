#include "common/engine/torch/decoder.h"

#include <algorithm>

namespace outrider::libtorch {
namespace {

// Loads this rank's share of tensors and counts its bytes. After the first error, all calls do nothing.
class Loader {
 public:
  Loader(const TensorSource& source, const DecoderConfig& spec, const Share& share,
         const at::TensorOptions& options)
      : source_(source), spec_(spec), share_(share), options_(options) {}

  at::Tensor Norm(const StoredTensor& norm) {
    const at::Tensor read = Read(norm, Part::kWhole, options_.dtype(at::kFloat));
    return Count(read.defined() && spec_.norms_plus_one ? read + 1 : read);
  }
  // Element i of a list of norms; undefined if the list is empty because the model has no such norms.
  at::Tensor Norm(const std::vector<StoredTensor>& norms, size_t i) {
    return norms.empty() ? at::Tensor() : Norm(norms[i]);
  }
  // This share of the rows of each part, in order; undefined if there are no parts.
  at::Tensor Outputs(const std::vector<StoredTensor>& parts) {
    std::vector<at::Tensor> tensors;
    for (const StoredTensor& part : parts) tensors.push_back(Read(part, Part::kRows, options_));
    if (!status_.ok() || tensors.empty()) return {};
    return Count(tensors.size() == 1 ? tensors[0] : at::cat(tensors));
  }
  // This share of the matrix's columns.
  at::Tensor Inputs(const StoredTensor& matrix) { return Count(Read(matrix, Part::kColumns, options_)); }
  at::Tensor Embedding(const StoredTensor& table) { return Read(table, Part::kWhole, options_); }
  // This share of the embedding's rows, which are not copied.
  at::Tensor Tied(const at::Tensor& embedding) {
    return Count(embedding.defined() ? Narrow(embedding, Part::kRows) : embedding);
  }

  // `continues`: the layer continues another model's hidden states, which are not normalised.
  LayerWeights Layer(const LayerTensors& layer, bool continues) {
    return {.attention_norm = continues ? at::Tensor() : Norm(layer.attention_norm),
            .qkv = Outputs(layer.qkv.parts),
            .qkv_bias = Outputs(layer.qkv_bias),
            .query_norm = Norm(layer.qk_norm, 0),
            .key_norm = Norm(layer.qk_norm, 1),
            .attention_out = Inputs(layer.attention_out.parts[0]),
            .attention_out_norm = Norm(layer.output_norms, 0),
            .mlp_norm = Norm(layer.mlp_norm),
            .gate_up = Outputs(layer.gate_up.parts),
            .mlp_out = Inputs(layer.mlp_out.parts[0]),
            .mlp_out_norm = Norm(layer.output_norms, 1)};
  }

  const absl::Status& status() const { return status_; }
  size_t bytes() const { return bytes_; }

 private:
  enum class Part { kWhole, kRows, kColumns };

  at::Tensor Narrow(const at::Tensor& tensor, Part part) const {
    if (part == Part::kWhole) return tensor;
    const int64_t dimension = part == Part::kRows ? 0 : 1, size = tensor.size(dimension);
    const int64_t each = (size + share_.of - 1) / share_.of, begin = std::min(size, share_.rank * each);
    return tensor.narrow(dimension, begin, std::min(each, size - begin));
  }
  // Makes a copy, so that later changes to the file have no effect.
  at::Tensor Read(const StoredTensor& tensor, Part part, const at::TensorOptions& options) {
    const TensorView view = source_.Get(tensor.name, tensor.shape, status_);
    if (!status_.ok()) return {};
    return Narrow(ViewOf(view), part).to(options, /*non_blocking=*/false, /*copy=*/true).contiguous();
  }
  at::Tensor Count(at::Tensor tensor) {
    if (tensor.defined()) bytes_ += tensor.nbytes();
    return tensor;
  }

  const TensorSource& source_;
  const DecoderConfig& spec_;
  const Share share_;
  const at::TensorOptions options_;
  absl::Status status_;
  size_t bytes_ = 0;
};

}  // namespace

at::Tensor ViewOf(const TensorView& stored) {
  constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};  // in the order of ElementType
  return at::from_blob(const_cast<char*>(stored.data), stored.shape, kTypes[static_cast<int>(stored.type)]);
}

absl::StatusOr<Weights> LoadWeights(const TensorSource& source, const DecoderConfig& spec, const Share& share,
                                    const at::TensorOptions& options,
                                    const std::function<void(double)>& progress) {
  const DecoderTensors tensors = TensorsOf(spec);
  Loader loader(source, spec, share, options);
  Weights weights;
  if (spec.outer_norms) weights.embedding = loader.Embedding(tensors.embedding);
  for (const LayerTensors& layer : tensors.layers) {
    weights.layers.push_back(loader.Layer(layer, !spec.outer_norms && weights.layers.empty()));
    const double layers_done = static_cast<double>(weights.layers.size());
    if (progress && loader.status().ok()) progress(layers_done / (spec.layers + 1));
  }
  if (spec.outer_norms) {
    weights.final_norm = loader.Norm(tensors.final_norm);
    weights.head = spec.tie_word_embeddings && spec.head_tokens.empty() ? loader.Tied(weights.embedding)
                                                                        : loader.Outputs(tensors.head.parts);
  }
  if (!loader.status().ok()) return loader.status();
  weights.bytes = loader.bytes();
  if (progress) progress(1);
  return weights;
}

}  // namespace outrider::libtorch
