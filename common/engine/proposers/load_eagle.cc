#include "common/engine/proposers/head_folder.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/engine/decoder/frequent_head.h"
#include "common/engine/decoder/model_config.h"
#include "common/engine/decoder/rounded_blocks.h"
#include "common/engine/proposers/eagle.h"
#include "common/spec/status.h"
#include "common/text/json.h"

namespace outrider {
namespace {

// The layer's tensors under a decoder's names. The target's own tensors come from the target.
class EagleTensors final : public TensorSource {
 public:
  // `prefix`: what the layer's names begin with.
  EagleTensors(const TensorSource& layer, std::string prefix, const TensorSource& target)
      : layer_(layer), prefix_(std::move(prefix)), target_(target) {}

  using TensorSource::Get;
  absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const override {
    if (!absl::ConsumePrefix(&name, "model.layers.0.")) return target_.Get(name, shape);
    return layer_.Get(absl::StrCat(prefix_, name), shape);
  }

 private:
  const TensorSource& layer_;
  const std::string prefix_;
  const TensorSource& target_;
};

// Reads the head. The releases of EAGLE-3 draft from a part of the vocabulary (Li et al. 2025, arXiv
// 2503.01840): token i of "lm_head.weight" is the target's token i + d2t[i]. If they omit the matrix, its
// rows are those of the target's head.
DraftHead ReadHead(const HeadFolder& folder, HeadWeights& weights) {
  const int vocab = folder.vocab();
  const DecoderConfig& decoder = folder.target.decoder;
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
    if (!has_all && TextTokens::HasRowsOfHead(decoder, folder.target.model)) {
      head.text = std::make_unique<TextTokens>(head.tokens, decoder, folder.target.model);
    }
  }
  return DraftHead(std::move(head));
}

// Reads the numbers of layers after which EAGLE-3 uses the target's residual stream, in ascending order. If
// the config has no field for them, they are those of the authors' code (eagle/model/modeling_llama_kv.py in
// github.com/SafeAILab/EAGLE).
std::vector<int> ReadTaps(FieldReader& fields, int layers) {
  const char* const own = "feature_layers";
  const char* const name = fields.Has(own) ? own : "eagle_aux_hidden_state_layer_ids";
  if (!fields.Has(name)) {
    if (layers < 5) fields.Fail(own, "is missing, for a target of ", layers, " layers");
    return {2, layers / 2, layers - 3};
  }
  const nlohmann::json& list = fields.At(name);
  std::vector<int> taps;
  for (const nlohmann::json& tap : list.is_array() ? list : nlohmann::json::array()) {
    const bool fits = tap.is_number_integer() && tap >= (taps.empty() ? 1 : taps.back()) && tap <= layers;
    if (!fits) break;
    taps.push_back(tap.get<int>());
  }
  if (taps.empty() || taps.size() != list.size()) {
    fields.Fail(name, "is no ascending list of numbers in [1, ", layers, "]: ", DumpJson(list));
  }
  return taps;
}

// Reads the parts that only EAGLE-3 has. `layer`: what the layer's names begin with.
Eagle3Parts ReadEagle3(const HeadFolder& folder, const std::string& layer, double epsilon,
                       HeadWeights& weights) {
  const int64_t hidden = folder.hidden();
  return {.taps = ReadTaps(folder.fields, folder.target.decoder.layers),
          .embedding_norm = weights.Values(layer + "input_layernorm.weight", {hidden}),
          .state_norm = weights.Values(layer + "hidden_norm.weight", {hidden}),
          .head_norm = weights.Values("norm.weight", {hidden}),
          .epsilon = static_cast<float>(epsilon),
          .norm_before_residual = folder.fields.Bool("norm_before_residual", false)};
}

// How a folder names its tensors.
struct Layout {
  bool is_eagle3 = false;
  std::string layer;  // what the layer's names begin with
  std::string fuse;
};

Layout ReadLayout(FieldReader& fields, const HeadWeights& weights) {
  if (!fields.Has("speculators_model_type")) {
    const bool shows = weights.Has("midlayer.hidden_norm.weight");
    const int version = fields.Has("eagle_version") ? fields.Int("eagle_version", 1, 3) : shows ? 3 : 1;
    if (version == 2) fields.Fail("eagle_version", "is 2: its layer is that of version 1");
    return {version == 3, version == 3 ? "midlayer." : "layers.0.", "fc."};
  }
  if (fields.String("speculators_model_type", "") == "eagle") {
    RequireValue(fields, "transformer_layer_architecture", "LlamaDecoderLayer");
    RefuseTrue(fields, "layernorms", "these norms are not computed");
    return {false, "transformer.", "fusion_fc."};
  }
  // Where it is absent, speculators reads false and vLLM true.
  if (!fields.Has("norm_before_residual")) fields.Fail("norm_before_residual", "is missing");
  RefuseTrue(fields, "norm_before_fc", "this norm is not computed");
  return {true, "layers.0.", "fc."};
}

absl::StatusOr<DecoderConfig> ReadLayer(FieldReader& fields, const DecoderConfig& target) {
  DecoderConfig spec;
  spec.vocab_size = target.vocab_size;
  spec.hidden_size = target.hidden_size;
  spec.intermediate_size = ReadInner(fields);
  spec.layers = 1;
  spec.heads = fields.Int("num_attention_heads", 1, kMaxSizes.heads);
  spec.kv_heads =
      fields.Has("num_key_value_heads") ? fields.Int("num_key_value_heads", 1, spec.heads) : spec.heads;
  OUTRIDER_TRY(fields.status());  // before dividing by spec.heads
  spec.head_dim =
      fields.Has("head_dim") ? fields.Int("head_dim", 2, kMaxSizes.head_dim) : spec.hidden_size / spec.heads;
  spec.max_position_embeddings = target.max_position_embeddings;
  spec.rms_norm_eps = fields.Positive("rms_norm_eps");
  ReadRope(fields, spec);
  RequireValue(fields, "hidden_act", "silu");
  RefuseTrue(fields, "attention_bias", "biases are not computed");
  RefuseTrue(fields, "mlp_bias", "biases are not computed");
  spec.tie_word_embeddings = target.tie_word_embeddings;
  spec.outer_norms = false;
  spec.first_position = 1;
  if (spec.heads % spec.kv_heads != 0) fields.Fail("num_key_value_heads", "must divide num_attention_heads");
  if (spec.head_dim < 2 || spec.head_dim % 2 != 0) fields.Fail("head_dim", "must be even, at least 2");
  OUTRIDER_TRY(fields.status());
  return spec;
}

}  // namespace

absl::StatusOr<DecoderConfig> ReadEagleConfig(FieldReader& fields, const DecoderConfig& target) {
  if (!fields.Has("speculators_model_type")) return ReadLayer(fields, target);
  if (!fields.Has("transformer_layer_config")) fields.Fail("transformer_layer_config", "is missing");
  OUTRIDER_TRY(fields.status());
  FieldReader layer = fields.Nested("transformer_layer_config");
  OUTRIDER_TRY(fields.status());
  if (layer.Int("num_hidden_layers", 1) != 1) layer.Fail("num_hidden_layers", "is not 1");
  CheckSizes(layer, target);
  return ReadLayer(layer, target);
}

absl::StatusOr<std::unique_ptr<Proposer>> LoadEagle(const HeadFolder& folder) {
  const ProposerTarget& target = folder.target;
  DecoderConfig spec = OUTRIDER_TRY(ReadEagleConfig(folder.fields, target.decoder));
  HeadWeights weights(folder);
  OUTRIDER_TRY(weights.status());
  const int64_t hidden = folder.hidden();
  const Layout layout = ReadLayout(folder.fields, weights);
  EagleParts parts{.target = target.model,
                   .layer = nullptr,
                   .head = ReadHead(folder, weights),
                   .fuse = nullptr,
                   .fuse_bias = {},
                   .states = {},
                   .hidden_size = folder.hidden(),
                   .block_size = target.options.block_size,
                   .max_rows = target.options.max_batch_rows};
  int64_t fused = 2;
  if (layout.is_eagle3) {
    parts.eagle3 = ReadEagle3(folder, layout.layer, spec.rms_norm_eps, weights);
    fused = static_cast<int64_t>(parts.eagle3->taps.size());
    spec.attention_input = 2 * folder.hidden();
  }
  OUTRIDER_TRY(folder.fields.status());
  parts.fuse = weights.Load(layout.fuse + "weight", hidden, fused * hidden);
  const std::string bias = layout.fuse + "bias";
  if (folder.fields.Bool("fusion_bias", weights.Has(bias))) parts.fuse_bias = weights.Values(bias, {hidden});
  OUTRIDER_TRY(weights.status());
  RunnerOptions options = target.options;
  options.model_dir = folder.dir;
  options.kv_blocks = target.model.kv_blocks();
  options.observe = nullptr;
  options.progress = nullptr;
  const EagleTensors tensors(weights.tensors(), layout.layer, target.weights);
  const RoundedTensors rounded(tensors);
  const bool rounds = target.model.dtype() == kPackedDtype;
  parts.layer = OUTRIDER_TRY(target.backend.Load(
      spec, rounds ? static_cast<const TensorSource&>(rounded) : tensors, options, target.threads));
  const size_t slots = static_cast<size_t>(options.kv_blocks) * static_cast<size_t>(options.block_size);
  parts.states =
      OUTRIDER_TRY(Buffer::Allocate(slots * static_cast<size_t>(hidden) * sizeof(float), "hidden states"));
  return std::make_unique<Eagle>(std::move(parts));
}

}  // namespace outrider
