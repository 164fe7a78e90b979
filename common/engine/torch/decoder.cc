#include "common/engine/torch/decoder.h"

#include <utility>

#include "common/engine/decoder/rope.h"

namespace outrider::libtorch {
namespace {

// Rotates the pairs (x[i], x[i + head_dim / 2]) of every head, Hugging Face's layout. x: [rows, heads,
// head_dim].
at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines) {
  const std::vector<at::Tensor> halves = x.to(at::kFloat).chunk(2, -1);
  const at::Tensor &a = halves[0], &b = halves[1];
  return at::cat({a * cosines - b * sines, b * cosines + a * sines}, -1).to(x.scalar_type());
}

}  // namespace

Decoder::Decoder(const DecoderSpec& spec, Weights weights, PagedCache cache)
    : spec_(spec),
      weights_(std::move(weights)),
      cache_(std::move(cache)),
      inverse_frequencies_(
          at::tensor(RopeInverseFrequencies(spec), at::kFloat).to(weights_.embedding.device())) {}

at::Tensor Decoder::Forward(const Step& step) {
  const at::Tensor angles = step.positions.to(at::kFloat).view({-1, 1, 1}) * inverse_frequencies_;
  const Angles of_rows = {angles.cos(), angles.sin()};
  at::Tensor x = weights_.embedding.index_select(0, step.tokens).to(at::kFloat);
  for (int layer = 0; layer < spec_.layers; ++layer) x = Layer(layer, x, of_rows, step);
  x = Normalize(x.index_select(0, step.logit_rows), weights_.final_norm);
  return at::linear(x, weights_.head).to(at::kFloat);
}

at::Tensor Decoder::Layer(int layer, at::Tensor x, const Angles& angles, const Step& step) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const int64_t heads = spec_.heads, kv_heads = spec_.kv_heads;

  const at::Tensor normalized = Normalize(x, weights.attention_norm);
  const at::Tensor qkv =
      at::linear(normalized, weights.qkv).view({-1, heads + 2 * kv_heads, int64_t{spec_.head_dim}});
  const std::vector<at::Tensor> parts = qkv.split_with_sizes({heads, kv_heads, kv_heads}, 1);
  const at::Tensor queries = Rotate(parts[0], angles.cosines, angles.sines);
  const at::Tensor keys = Rotate(parts[1], angles.cosines, angles.sines);
  cache_.Store(layer, step.blocks, step.slots, keys, parts[2]);
  x = x + at::linear(Attend(layer, queries, step), weights.attention_out);

  const at::Tensor gate_up = at::linear(Normalize(x, weights.mlp_norm), weights.gate_up);
  const std::vector<at::Tensor> gate_and_up = gate_up.chunk(2, -1);
  return x + at::linear(at::silu(gate_and_up[0]) * gate_and_up[1], weights.mlp_out);
}

at::Tensor Decoder::Attend(int layer, const at::Tensor& queries, const Step& step) const {
  const int64_t kv_heads = spec_.kv_heads, sharing = spec_.heads / spec_.kv_heads, dim = spec_.head_dim;
  at::Tensor out = at::empty_like(queries);
  for (const AttentionGroup& group : step.groups) {
    const int64_t sequences = group.sequences, rows = group.rows_each;
    const auto [keys, values] = cache_.Gather(layer, group.table, group.unwritten);
    // The heads that share keys and values are further rows, so that these need not be repeated.
    const at::Tensor q = queries.index_select(0, group.rows)
                             .view({sequences, rows, kv_heads, sharing, dim})
                             .permute({0, 2, 3, 1, 4})
                             .reshape({sequences, kv_heads, sharing * rows, dim});
    const at::Tensor attended =
        at::scaled_dot_product_attention(q, keys, values, group.mask.repeat({1, 1, sharing, 1}));
    out.index_copy_(0, group.rows,
                    attended.view({sequences, kv_heads, sharing, rows, dim})
                        .permute({0, 3, 1, 2, 4})
                        .reshape({sequences * rows, kv_heads * sharing, dim}));
  }
  return out.flatten(1);
}

at::Tensor Decoder::Normalize(const at::Tensor& x, const at::Tensor& weight) const {
  return at::rms_norm(x, weight.sizes(), weight, spec_.rms_norm_eps).to(weights_.embedding.scalar_type());
}

}  // namespace outrider::libtorch
