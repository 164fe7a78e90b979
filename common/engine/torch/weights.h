// The weights of a decoder as tensors.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/decoder/tensor_source.h"

namespace outrider::libtorch {

// A rank's share of a model that several processes share (RankGroup).
struct Share {
  int rank = 0;
  int of = 1;
};

// In a share, qkv and gate_up have only that share's heads and columns, and the other two matrices only the
// inputs from those.
//
// Matrices are [outputs, inputs], of the dtype and on the device that LoadWeights was given, as are biases.
// Norms are float32, as they are multiplied with.
struct LayerWeights {
  at::Tensor attention_norm;  // [hidden]; undefined in the first layer unless spec.outer_norms
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
  at::Tensor embedding;  // [vocab, hidden]; undefined unless spec.outer_norms, as are final_norm and head
  std::vector<LayerWeights> layers;
  at::Tensor final_norm;  // [hidden]
  // [vocab, hidden]; rows of the embedding itself if they are tied. A share has the rows from rank *
  // ceil(vocab / of) on, at most ceil(vocab / of) of them.
  at::Tensor head;
  size_t bytes = 0;  // of all but the embedding
};

// A stored tensor as one of libtorch's, without a copy.
at::Tensor ViewOf(const TensorView& stored);

// Copies a share of the weights; `share.of` divides the heads, the heads of keys, and the columns of the MLP.
// Errors are those of the source. Throws c10::Error if there is not enough memory. `progress` may be null.
absl::StatusOr<Weights> LoadWeights(const TensorSource& source, const DecoderSpec& spec, const Share& share,
                                    const at::TensorOptions& options,
                                    const std::function<void(double)>& progress);

}  // namespace outrider::libtorch
