#include "common/engine/proposers/load_eagle.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/engine/decoder/family_fields.h"
#include "common/engine/decoder/frequent_head.h"
#include "common/engine/decoder/safetensors.h"
#include "common/engine/decoder/tensor_names.h"
#include "common/engine/proposers/draft_head.h"
#include "common/engine/proposers/eagle.h"

namespace outrider {
namespace {

// The layer's tensors by the names of a decoder's. What is the target's own comes from the target.
class EagleTensors final : public TensorSource {
 public:
  EagleTensors(const TensorSource& layer, const TensorSource& target) : layer_(layer), target_(target) {}

  using TensorSource::Get;
  absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const override {
    constexpr absl::string_view kPrefix = "model.";
    if (!absl::StartsWith(name, "model.layers.")) return target_.Get(name, shape);
    return layer_.Get(name.substr(kPrefix.size()), shape);
  }

 private:
  const TensorSource& layer_;
  const TensorSource& target_;
};

// The head. The releases of EAGLE-3 draft from a part of the vocabulary (Li et al. 2025, arXiv 2503.01840):
// token i of "lm_head.weight" is the target's token i + d2t[i]. Where they leave the matrix out, its rows are
// those of the target's.
DraftHead ReadHead(const HeadFolder& folder, HeadWeights& weights) {
  const int vocab = folder.vocab();
  const DecoderSpec& decoder = folder.target.decoder;
  int64_t count = weights.Has("d2t") ? weights.RowsOf("d2t") : vocab;
  if (folder.fields.Has("draft_vocab_size")) count = folder.fields.Int("draft_vocab_size", 1, vocab);
  const bool has_matrix = weights.Has("lm_head.weight"), has_all = !weights.Has("d2t") && count == vocab;
  if (has_all && !has_matrix) return DraftHead(folder.target.model);

  DraftHead::Own head{.matrix = nullptr, .tokens = {}, .vocab = vocab};
  if (!has_all) head.tokens = weights.Ids("d2t", count, vocab);
  if (has_matrix) {
    head.matrix = weights.Load("lm_head.weight", count, folder.hidden());
  } else {
    const FrequentHead rows(folder.target.weights, decoder, head.tokens);
    head.matrix = weights.Load(rows.Get(TensorsOf(decoder).head.parts[0].name, {count, folder.hidden()}));
    head.softcap = decoder.final_softcap;
  }
  return DraftHead(std::move(head));
}

}  // namespace

absl::StatusOr<DecoderSpec> ReadEagleSpec(FieldReader& fields, const DecoderSpec& target) {
  DecoderSpec spec;
  spec.vocab_size = target.vocab_size;
  spec.hidden_size = target.hidden_size;
  spec.intermediate_size = ReadInner(fields);
  spec.layers = 1;
  spec.heads = fields.Int("num_attention_heads", 1, 1 << 16);
  spec.kv_heads =
      fields.Has("num_key_value_heads") ? fields.Int("num_key_value_heads", 1, spec.heads) : spec.heads;
  if (!fields.status().ok()) return fields.status();  // before it divides
  spec.head_dim = fields.Has("head_dim") ? fields.Int("head_dim", 2, 1 << 12) : spec.hidden_size / spec.heads;
  spec.max_position_embeddings = target.max_position_embeddings;
  spec.rms_norm_eps = fields.Positive("rms_norm_eps");
  ReadRope(fields, spec);
  spec.tie_word_embeddings = target.tie_word_embeddings;
  spec.outer_norms = false;
  spec.first_position = 1;
  if (spec.heads % spec.kv_heads != 0) fields.Fail("num_key_value_heads", "must divide num_attention_heads");
  if (spec.head_dim < 2 || spec.head_dim % 2 != 0) fields.Fail("head_dim", "must be even, at least 2");
  if (!fields.status().ok()) return fields.status();
  return spec;
}

// The names of the authors' releases.
absl::StatusOr<std::unique_ptr<Proposer>> LoadEagle(const HeadFolder& folder) {
  const ProposerTarget& target = folder.target;
  const absl::StatusOr<DecoderSpec> spec = ReadEagleSpec(folder.fields, target.decoder);
  if (!spec.ok()) return spec.status();
  const absl::StatusOr<SafeTensors> tensors = SafeTensors::Open(folder.dir);
  if (!tensors.ok()) return tensors.status();
  HeadWeights weights(*tensors, target.model);
  const int hidden = folder.hidden();
  EagleParts parts{
      .target = target.model,
      .layer = nullptr,
      .head = ReadHead(folder, weights),
      .fuse = weights.Load("fc.weight", hidden, 2 * hidden),
      .fuse_bias = weights.Has("fc.bias") ? weights.Values("fc.bias", {hidden}) : std::vector<float>(),
      .states = {},
      .hidden_size = hidden,
      .block_size = target.options.block_size,
      .max_rows = target.options.max_batch_rows,
      .max_tokens = kNoLimit};
  if (!folder.fields.status().ok()) return folder.fields.status();
  if (!weights.status().ok()) return weights.status();
  RunnerOptions options = target.options;
  options.model_dir = folder.dir;
  options.kv_blocks = target.model.kv_blocks();
  options.observe = nullptr;
  options.progress = nullptr;
  absl::StatusOr<std::unique_ptr<Model>> layer =
      target.backend.Load(*spec, EagleTensors(*tensors, target.weights), options, target.threads);
  if (!layer.ok()) return layer.status();
  parts.layer = *std::move(layer);
  const size_t slots = static_cast<size_t>(options.kv_blocks) * static_cast<size_t>(options.block_size);
  absl::StatusOr<Buffer> states =
      Buffer::Allocate(slots * static_cast<size_t>(hidden) * sizeof(float), "hidden states");
  if (!states.ok()) return states.status();
  parts.states = *std::move(states);
  return std::make_unique<Eagle>(std::move(parts));
}

}  // namespace outrider
