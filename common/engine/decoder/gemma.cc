#include "common/engine/decoder/gemma.h"

#include <cmath>
#include <optional>

#include "common/engine/decoder/family_fields.h"

namespace outrider {
namespace {

void ReadCommon(FieldReader& fields, DecoderSpec& spec) {
  RequireValue(fields, "hidden_activation", "gelu_pytorch_tanh");
  RefuseTrue(fields, "attention_bias", "biases are not supported");
  RefuseTrue(fields, "use_bidirectional_attention", "this is no decoder");
  ReadSizes(fields, spec, /*tied=*/true);
  ReadRope(fields, spec);
  spec.activation = Activation::kGeluTanh;
  spec.norms_plus_one = true;
  spec.output_norms = true;
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden_size));
  spec.query_scale = 1 / std::sqrt(fields.Positive("query_pre_attn_scalar"));
  if (!fields.Has("head_dim")) spec.head_dim = 256;  // in transformers, whatever the hidden size
}

// `otherwise` if the field is absent; null means none.
std::optional<double> ReadSoftcap(FieldReader& fields, const char* name, std::optional<double> otherwise) {
  if (fields.IsAbsent(name)) return otherwise;
  return fields.Has(name) ? std::optional(fields.Positive(name)) : std::nullopt;
}

}  // namespace

DecoderSpec ReadGemma2(FieldReader& fields) {
  DecoderSpec spec;
  RequireArchitecture(fields, "Gemma2ForCausalLM");
  ReadCommon(fields, spec);
  spec.attention_softcap = ReadSoftcap(fields, "attn_logit_softcapping", 50);
  spec.final_softcap = ReadSoftcap(fields, "final_logit_softcapping", 30);
  ReadSlidingLayers(fields, spec, [](int layer) { return layer % 2 == 0; });
  return spec;
}

DecoderSpec ReadGemma3(FieldReader& fields) {
  DecoderSpec spec;
  RequireArchitecture(fields, "Gemma3ForCausalLM");
  spec.rope_theta = 1e6;
  spec.sliding_rope_theta = 1e4;
  ReadCommon(fields, spec);
  spec.attention_softcap = ReadSoftcap(fields, "attn_logit_softcapping", std::nullopt);
  spec.final_softcap = ReadSoftcap(fields, "final_logit_softcapping", std::nullopt);
  if (fields.Has("rope_local_base_freq")) spec.sliding_rope_theta = fields.Positive("rope_local_base_freq");
  const int pattern = fields.Has("sliding_window_pattern") ? fields.Int("sliding_window_pattern", 1) : 6;
  ReadSlidingLayers(fields, spec, [pattern](int layer) { return (layer + 1) % pattern != 0; });
  spec.qk_norm = true;
  return spec;
}

}  // namespace outrider
