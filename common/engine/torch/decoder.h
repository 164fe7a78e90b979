// The forward pass of a decoder on tensors.
#pragma once

#include <ATen/ATen.h>

#include <functional>

#include "absl/strings/string_view.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/stage_output.h"
#include "common/engine/torch/paged_cache.h"
#include "common/engine/torch/rank_group.h"
#include "common/engine/torch/step.h"
#include "common/engine/torch/weights.h"

namespace outrider::libtorch {

// Computes on any device, in the weights' dtype; the residual stream, norms and rotations are float32.
// Functions throw c10::Error if the device fails. Not thread-safe.
class Decoder {
 public:
  // `ranks` share the model, and outlive this; null: it has all of it. `spec` is of this rank's share, but
  // for the vocabulary. `observe` is called with the rows of each stage; null: nobody wants them. With it, a
  // step cannot be captured.
  Decoder(const DecoderSpec& spec, Weights weights, PagedCache cache, RankGroup* ranks,
          std::function<void(const StageOutput& output)> observe);

  // Stores the rows' keys and values in the cache, and returns the wanted logits, float32 [wanted, vocab]. On
  // ranks other than 0, what is returned means nothing. If hidden states are wanted, `hidden` is set to them,
  // float32 [wanted, columns] as HiddenView has them; null: they are not wanted.
  at::Tensor Forward(const Step& step, at::Tensor* hidden = nullptr);
  // What tokens [rows] are embedded as: float32 [rows, hidden].
  at::Tensor Embed(const at::Tensor& tokens) const;
  // The logits of rows of what the head multiplies: float32 [rows, vocab] for float32 [rows, hidden].
  at::Tensor Logits(const at::Tensor& x) const;

  PagedCache& cache() { return cache_; }
  const PagedCache& cache() const { return cache_; }
  const Weights& weights() const { return weights_; }
  const DecoderSpec& spec() const { return spec_; }

 private:
  // Cosines and sines of the rows' positions, [rows, 1, head_dim / 2] each.
  struct Angles {
    at::Tensor cosines, sines;
  };

  // The rows before the first layer; of a decoder that has no embedding all are given.
  at::Tensor EmbedRows(const Step& step) const;
  Angles AnglesOf(const at::Tensor& positions, const at::Tensor& inverse_frequencies) const;
  // The residual stream after a layer. x: [rows, hidden], before it.
  at::Tensor Layer(int layer, at::Tensor x, const Angles& angles, const Step& step);
  // Attention of queries [rows, heads, head_dim] over the cache: [rows, heads * head_dim].
  at::Tensor Attend(int layer, const at::Tensor& queries, const Step& step) const;
  at::Tensor Activate(const at::Tensor& x) const;
  void Observe(absl::string_view stage, int layer, const at::Tensor& rows) const;
  // Of what this rank's share of a layer put out.
  at::Tensor SumOverRanks(const at::Tensor& share) const { return ranks_ ? ranks_->Sum(share) : share; }
  // In float32, over the last dimension; x itself if the weight is undefined.
  at::Tensor Normalize(const at::Tensor& x, const at::Tensor& weight) const;
  at::Tensor ToOperand(const at::Tensor& x) const { return x.to(weights_.layers[0].qkv.scalar_type()); }

  const DecoderSpec spec_;
  const Weights weights_;
  PagedCache cache_;
  RankGroup* const ranks_;
  const std::function<void(const StageOutput& output)> observe_;
  at::Tensor inverse_frequencies_;          // [head_dim / 2], float32
  at::Tensor sliding_inverse_frequencies_;  // the same for layers that slide
};

}  // namespace outrider::libtorch
