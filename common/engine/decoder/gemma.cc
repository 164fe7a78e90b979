#include "common/engine/decoder/gemma.h"

#include <cmath>

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
  if (fields.Has("attn_logit_softcapping")) {
    spec.attention_softcap = fields.Positive("attn_logit_softcapping");
  }
  if (fields.Has("final_logit_softcapping")) spec.final_softcap = fields.Positive("final_logit_softcapping");
}

}  // namespace

DecoderSpec ReadGemma2(FieldReader& fields) {
  DecoderSpec spec;
  RequireArchitecture(fields, "Gemma2ForCausalLM");
  ReadCommon(fields, spec);
  ReadSlidingLayers(fields, spec, [](int layer) { return layer % 2 == 0; });
  return spec;
}

DecoderSpec ReadGemma3(FieldReader& fields) {
  DecoderSpec spec;
  RequireArchitecture(fields, "Gemma3ForCausalLM");
  ReadCommon(fields, spec);
  if (fields.Has("rope_local_base_freq")) spec.sliding_rope_theta = fields.Positive("rope_local_base_freq");
  const int pattern = fields.Has("sliding_window_pattern") ? fields.Int("sliding_window_pattern", 1) : 6;
  ReadSlidingLayers(fields, spec, [pattern](int layer) { return (layer + 1) % pattern != 0; });
  spec.qk_norm = true;
  return spec;
}

}  // namespace outrider
