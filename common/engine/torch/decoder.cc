#include "common/engine/torch/decoder.h"

#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace outrider::libtorch {
namespace {

// Rotates the pairs (x[i], x[i + head_dim / 2]) of every head, Hugging Face's layout. x: [rows, heads,
// head_dim], float32.
at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines) {
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  const at::Tensor &a = halves[0], &b = halves[1];
  return at::cat({a * cosines - b * sines, b * cosines + a * sines}, -1);
}

at::Tensor SoftCap(const at::Tensor& x, double cap) { return at::tanh(x / cap) * cap; }

// Attention with capped scores, which scaled_dot_product_attention cannot do.
at::Tensor CappedAttention(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                           const at::Tensor& mask, double scale, double cap) {
  const at::Tensor scores = SoftCap(at::matmul(q, keys.transpose(-1, -2)).to(at::kFloat) * scale, cap);
  return at::matmul(at::softmax(scores + mask, -1).to(values.scalar_type()), values);
}

}  // namespace

Decoder::Decoder(const DecoderConfig& spec, Weights weights, PagedCache cache, RankGroup* ranks,
                 std::function<void(const StageOutput& output)> observe)
    : spec_(spec),
      weights_(std::move(weights)),
      cache_(std::move(cache)),
      ranks_(ranks),
      observe_(std::move(observe)) {
  const auto upload = [this](const std::vector<float>& values) {
    return at::tensor(values, at::kFloat).to(weights_.layers[0].qkv.device());
  };
  inverse_frequencies_ = upload(RopeInverseFrequencies(spec));
  sliding_inverse_frequencies_ = upload(SlidingRopeInverseFrequencies(spec));
}

at::Tensor Decoder::Forward(const Step& step, at::Tensor* hidden) {
  const Angles angles = AnglesOf(step.positions, inverse_frequencies_);
  const Angles sliding_angles =
      spec_.sliding_rope_theta ? AnglesOf(step.positions, sliding_inverse_frequencies_) : angles;
  at::Tensor x = EmbedRows(step);
  Observe(kEmbedded, 0, x);
  const bool shows = hidden != nullptr && step.hidden_rows.defined();
  std::vector<at::Tensor> shown(1 + step.taps.size());
  const int layers = step.layers > 0 ? step.layers : spec_.layers;
  for (int layer = 0; layer < layers; ++layer) {
    x = Layer(layer, x, spec_.Slides(layer) ? sliding_angles : angles, step);
    for (size_t t = 0; shows && t < step.taps.size(); ++t) {
      if (step.taps[t] == layer + 1) shown[1 + t] = x.index_select(0, step.hidden_rows);
    }
  }
  if (shows) {
    shown[0] = Normalize(x.index_select(0, step.hidden_rows), weights_.final_norm);
    *hidden = at::cat(shown, 1);
  }
  if (!weights_.head.defined()) return at::empty({0, spec_.logit_columns()}, x.options());
  return Logits(Normalize(x.index_select(0, step.logit_rows), weights_.final_norm));
}

at::Tensor Decoder::EmbedRows(const Step& step) const {
  if (!weights_.embedding.defined()) return step.embeddings.narrow(1, 0, spec_.hidden_size);
  at::Tensor x = Embed(step.tokens);
  if (step.embedded_rows.defined()) x.index_copy_(0, step.embedded_rows, step.embeddings);
  return x;
}

at::Tensor Decoder::Embed(const at::Tensor& tokens) const {
  at::Tensor x = weights_.embedding.index_select(0, tokens).to(at::kFloat);
  // Rounded to the weights' type, as in transformers.
  if (spec_.embedding_scale)
    x = x * ToOperand(at::scalar_tensor(*spec_.embedding_scale, x.options())).to(at::kFloat);
  return x;
}

at::Tensor Decoder::Logits(const at::Tensor& x) const {
  at::Tensor logits = at::linear(ToOperand(x), weights_.head).to(at::kFloat);
  if (ranks_ != nullptr && logits.size(0) > 0) {
    // The last shares may be smaller, but Gather needs shares of equal size.
    const int64_t each = (spec_.logit_columns() + ranks_->size() - 1) / ranks_->size();
    logits = ranks_->Gather(at::constant_pad_nd(logits, {0, each - logits.size(1)}));
    if (ranks_->rank() == 0) logits = logits.narrow(1, 0, spec_.logit_columns());
  }
  return spec_.final_softcap ? SoftCap(logits, *spec_.final_softcap) : logits;
}

Decoder::Angles Decoder::AnglesOf(const at::Tensor& positions, const at::Tensor& inverse_frequencies) const {
  const at::Tensor angles = positions.to(at::kFloat).view({-1, 1, 1}) * inverse_frequencies;
  return {angles.cos(), angles.sin()};
}

at::Tensor Decoder::Layer(int layer, at::Tensor x, const Angles& angles, const Step& step) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const int64_t heads = spec_.heads, kv_heads = spec_.kv_heads;

  const bool given = layer == 0 && spec_.attention_input > 0;
  const at::Tensor input = given ? step.embeddings.narrow(1, spec_.hidden_size, spec_.attention_input)
                                 : Normalize(x, weights.attention_norm);
  const at::Tensor qkv = at::linear(ToOperand(input), weights.qkv, weights.qkv_bias)
                             .view({-1, heads + 2 * kv_heads, int64_t{spec_.head_dim}});
  const std::vector<at::Tensor> parts = qkv.split_with_sizes({heads, kv_heads, kv_heads}, 1);
  const at::Tensor unrotated = Normalize(parts[0], weights.query_norm).to(at::kFloat);
  const at::Tensor keys = Normalize(parts[1], weights.key_norm).to(at::kFloat);
  cache_.Store(layer, step.blocks, step.slots, ToOperand(Rotate(keys, angles.cosines, angles.sines)),
               parts[2]);
  const at::Tensor queries = ToOperand(Rotate(unrotated, angles.cosines, angles.sines));
  Observe(kQueries, layer, queries);
  const at::Tensor attended = Attend(layer, queries, step);
  Observe(kAttended, layer, attended);
  x = x + Normalize(SumOverRanks(at::linear(attended, weights.attention_out)), weights.attention_out_norm);
  Observe(kAfterAttention, layer, x);

  const at::Tensor gate_up = at::linear(ToOperand(Normalize(x, weights.mlp_norm)), weights.gate_up);
  const std::vector<at::Tensor> gate_and_up = gate_up.chunk(2, -1);
  const at::Tensor gate =
      spec_.activation == Activation::kGeluTanh ? at::gelu(gate_and_up[0], "tanh") : at::silu(gate_and_up[0]);
  const at::Tensor inner = gate * gate_and_up[1];
  Observe(kActivated, layer, inner);
  x = x + Normalize(SumOverRanks(at::linear(inner, weights.mlp_out)), weights.mlp_out_norm);
  Observe(kAfterMlp, layer, x);
  return x;
}

void Decoder::Observe(absl::string_view stage, int layer, const at::Tensor& rows) const {
  if (!observe_) return;
  const at::Tensor host = rows.to(at::kCPU, at::kFloat).flatten(1).contiguous();
  observe_({stage,
            layer,
            static_cast<int>(host.size(1)),
            {host.const_data_ptr<float>(), static_cast<size_t>(host.numel())}});
}

at::Tensor Decoder::Attend(int layer, const at::Tensor& queries, const Step& step) const {
  const int64_t kv_heads = spec_.kv_heads, sharing = spec_.heads / spec_.kv_heads, dim = spec_.head_dim;
  const double scale = spec_.query_scale.value_or(1 / std::sqrt(static_cast<double>(dim)));
  at::Tensor out = at::empty_like(queries);
  for (const AttentionGroup& group : step.groups) {
    const int64_t sequences = group.sequences, rows = group.rows_each;
    const auto [keys, values] = cache_.Gather(layer, group.table, group.unwritten);
    // Query heads that share keys and values become further rows, so that keys and values need no copies.
    const at::Tensor q = queries.index_select(0, group.rows)
                             .view({sequences, rows, kv_heads, sharing, dim})
                             .permute({0, 2, 3, 1, 4})
                             .reshape({sequences, kv_heads, sharing * rows, dim});
    const at::Tensor& mask = spec_.Slides(layer) ? group.sliding_mask : group.mask;
    const at::Tensor attended = spec_.attention_softcap
                                    ? CappedAttention(q, keys, values, mask, scale, *spec_.attention_softcap)
                                    : at::scaled_dot_product_attention(q, keys, values, mask, /*dropout_p=*/0,
                                                                       /*is_causal=*/false, scale);
    out.index_copy_(0, group.rows,
                    attended.view({sequences, kv_heads, sharing, rows, dim})
                        .permute({0, 3, 1, 2, 4})
                        .reshape({sequences * rows, kv_heads * sharing, dim}));
  }
  return out.flatten(1);
}

at::Tensor Decoder::Normalize(const at::Tensor& x, const at::Tensor& weight) const {
  if (!weight.defined()) return x;
  return at::rms_norm(x.to(at::kFloat), weight.sizes(), weight, spec_.rms_norm_eps);
}

size_t PagedCache::BlockBytes(const DecoderConfig& spec, int block_size, const at::TensorOptions& options) {
  return options.dtype().itemsize() * spec.kv_numbers() * static_cast<size_t>(block_size);
}

absl::StatusOr<PagedCache> PagedCache::Create(const DecoderConfig& spec, int blocks, int block_size,
                                              const at::TensorOptions& options) {
  const size_t block_bytes = BlockBytes(spec, block_size, options), count = static_cast<size_t>(blocks);
  const auto refuse = [&] {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", blocks, " blocks of ", block_bytes,
                                                     " bytes for the KV pool (--kv-blocks, --block-size)"));
  };
  if (block_bytes > std::numeric_limits<int64_t>::max() / count) return refuse();
  const int64_t sizes[] = {blocks, spec.layers, 2, spec.kv_heads, block_size, spec.head_dim};
  try {
    return PagedCache(at::empty(sizes, options));
  } catch (const c10::Error&) {  // what libtorch's allocator for the CPU throws
    return refuse();
  }
}

void PagedCache::Store(int layer, const at::Tensor& blocks, const at::Tensor& slots, const at::Tensor& keys,
                       const at::Tensor& values) {
  const at::Tensor of_layer = pool_.select(1, layer);  // [blocks, 2, kv_heads, block_size, head_dim]
  const auto all = at::indexing::Slice();
  of_layer.select(1, 0).index_put_({blocks, all, slots}, keys);
  of_layer.select(1, 1).index_put_({blocks, all, slots}, values);
}

std::pair<at::Tensor, at::Tensor> PagedCache::Gather(int layer, const at::Tensor& table,
                                                     const at::Tensor& unwritten) const {
  const int64_t sequences = table.size(0), positions = table.size(1) * block_size();
  const at::Tensor gathered = pool_.select(1, layer)
                                  .index_select(0, table.flatten())
                                  .unflatten(0, table.sizes())
                                  .permute({2, 0, 3, 1, 4, 5})
                                  .reshape({2, sequences, pool_.size(3), positions, pool_.size(5)})
                                  .masked_fill_(unwritten, 0);
  return {gathered[0], gathered[1]};
}

void PagedCache::CopyBlock(BlockId from, BlockId to) {
  if (from != to) pool_[to].copy_(pool_[from]);
}

void PagedCache::MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) {
  const auto slot_of = [&](int slot) {
    return pool_[blocks[static_cast<size_t>(slot / block_size())]].select(3, slot % block_size());
  };
  for (const SlotMove& move : moves) slot_of(move.to).copy_(slot_of(move.from));
}

void PagedCache::ReadSlot(BlockId block, int slot, absl::Span<float> values) const {
  const at::Tensor read = pool_[block].select(3, slot).to(at::kCPU, at::kFloat).contiguous();
  std::copy_n(read.const_data_ptr<float>(), values.size(), values.begin());
}

}  // namespace outrider::libtorch
