// The weights of a decoder as tensors.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/decoder/tensor_source.h"

namespace outrider::libtorch {

// Matrices are [outputs, inputs], of the dtype and on the device that LoadWeights was given, as are biases.
// Norms are float32, as they are multiplied with.
struct LayerWeights {
  at::Tensor attention_norm;  // [hidden]
  at::Tensor qkv;             // queries, keys, values of all heads
  at::Tensor qkv_bias;        // [columns of qkv]; undefined unless spec.qkv_bias
  at::Tensor query_norm;      // [head_dim]; both undefined unless spec.qk_norm
  at::Tensor key_norm;
  at::Tensor attention_out;
  at::Tensor attention_out_norm;  // [hidden]; undefined unless spec.output_norms
  at::Tensor mlp_norm;            // [hidden]
  at::Tensor gate_up;             // all of gate, then all of up
  at::Tensor mlp_out;
  at::Tensor mlp_out_norm;  // [hidden]; undefined unless spec.output_norms
};

struct Weights {
  at::Tensor embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  at::Tensor final_norm;  // [hidden]
  at::Tensor head;        // [vocab, hidden]; the embedding itself if they are tied
  size_t bytes = 0;       // of all but the embedding
};

// Copies the weights. Errors are those of the source. Throws c10::Error if there
// is not enough memory. `progress` may be null.
absl::StatusOr<Weights> LoadWeights(const TensorSource& source, const DecoderSpec& spec,
                                    const at::TensorOptions& options,
                                    const std::function<void(double)>& progress);

}  // namespace outrider::libtorch
