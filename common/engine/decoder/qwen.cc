#include "common/engine/decoder/qwen.h"

#include "common/engine/decoder/family_fields.h"

namespace outrider {
namespace {

void ReadCommon(FieldReader& fields, DecoderSpec& spec) {
  RequireValue(fields, "hidden_act", "silu");
  ReadSizes(fields, spec);
  ReadRope(fields, spec);
  // The window is often given and not used.
  if (!fields.Bool("use_sliding_window", false)) return;
  const int first = fields.Has("max_window_layers") ? fields.Int("max_window_layers", 0) : 28;
  ReadSlidingLayers(fields, spec, [first](int layer) { return layer >= first; });
}

}  // namespace

DecoderSpec ReadQwen2(FieldReader& fields) {
  DecoderSpec spec;
  RequireArchitecture(fields, "Qwen2ForCausalLM");
  ReadCommon(fields, spec);
  spec.qkv_bias = true;
  return spec;
}

DecoderSpec ReadQwen3(FieldReader& fields) {
  DecoderSpec spec;
  RequireArchitecture(fields, "Qwen3ForCausalLM");
  RefuseTrue(fields, "attention_bias", "a bias on the attention's output is not supported");
  ReadCommon(fields, spec);
  if (!fields.Has("head_dim")) spec.head_dim = 128;  // in transformers, whatever the hidden size
  spec.qk_norm = true;
  return spec;
}

}  // namespace outrider
