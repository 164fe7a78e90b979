#include "common/engine/decoder/llama.h"

#include <string>

namespace outrider {
namespace {

void RefuseOtherModels(FieldReader& fields) {
  if (fields.Has("architectures") &&
      fields.At("architectures") != nlohmann::json::array({"LlamaForCausalLM"})) {
    fields.Fail("architectures", "is not [\"LlamaForCausalLM\"]: ", fields.At("architectures").dump());
  }
  if (fields.String("hidden_act", "silu") != "silu") {
    fields.Fail("hidden_act", "is not \"silu\": ", fields.At("hidden_act").dump());
  }
  for (const char* name : {"attention_bias", "mlp_bias"}) {
    if (fields.Bool(name, false)) fields.Fail(name, "is true: biases are not supported");
  }
}

void ReadSizes(FieldReader& fields, DecoderSpec& spec) {
  spec.vocab_size = fields.Int("vocab_size", 1);
  spec.hidden_size = fields.Int("hidden_size", 2, 1 << 20);
  spec.intermediate_size = fields.Int("intermediate_size", 2, 1 << 24);
  spec.layers = fields.Int("num_hidden_layers", 1, 1 << 16);
  spec.heads = fields.Int("num_attention_heads", 1, 1 << 16);
  spec.kv_heads = fields.Has("num_key_value_heads") ? fields.Int("num_key_value_heads", 1) : spec.heads;
  spec.max_position_embeddings = fields.Int("max_position_embeddings", 1);
  if (!fields.status().ok()) return;

  if (spec.heads % spec.kv_heads != 0)
    fields.Fail("num_key_value_heads", "does not divide num_attention_heads");
  if (fields.Has("head_dim")) {
    spec.head_dim = fields.Int("head_dim", 2, 1 << 12);
  } else {
    if (spec.hidden_size % spec.heads != 0) fields.Fail("num_attention_heads", "does not divide hidden_size");
    spec.head_dim = spec.hidden_size / spec.heads;
  }
  if (spec.head_dim % 2 != 0) fields.Fail("head_dim", "is odd: ", spec.head_dim);
  if (spec.hidden_size % 2 != 0) fields.Fail("hidden_size", "is odd: ", spec.hidden_size);
  if (spec.intermediate_size % 2 != 0) fields.Fail("intermediate_size", "is odd: ", spec.intermediate_size);
}

Llama3RopeScaling ReadLlama3Scaling(FieldReader& rope) {
  Llama3RopeScaling scaling;
  scaling.factor = rope.Positive("factor");
  scaling.low_freq_factor = rope.Positive("low_freq_factor");
  scaling.high_freq_factor = rope.Positive("high_freq_factor");
  scaling.original_max_position_embeddings = rope.Int("original_max_position_embeddings", 1);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    rope.Fail("high_freq_factor", "is not above low_freq_factor");
  }
  return scaling;
}

// Reads both spellings: `rope_theta` beside `rope_scaling`, or everything inside `rope_parameters`
// (transformers 5).
void ReadRope(FieldReader& fields, DecoderSpec& spec) {
  if (fields.Has("rope_theta")) spec.rope_theta = fields.Positive("rope_theta");
  for (const char* spelling : {"rope_scaling", "rope_parameters"}) {
    if (!fields.Has(spelling)) continue;
    FieldReader rope = fields.Nested(spelling);
    if (rope.Has("rope_theta")) spec.rope_theta = rope.Positive("rope_theta");
    const char* kind_name = rope.Has("rope_type") ? "rope_type" : "type";
    const std::string kind = rope.String(kind_name, "default");
    if (kind == "llama3") {
      spec.rope_scaling = ReadLlama3Scaling(rope);
    } else if (kind != "default") {
      rope.Fail(kind_name, "is neither \"default\" nor \"llama3\": \"", kind, "\"");
    }
    fields.TakeError(rope);
  }
}

}  // namespace

DecoderSpec ReadLlama(FieldReader& fields) {
  DecoderSpec spec;
  RefuseOtherModels(fields);
  ReadSizes(fields, spec);
  spec.rms_norm_eps = fields.Positive("rms_norm_eps");
  spec.tie_word_embeddings = fields.Bool("tie_word_embeddings", false);
  ReadRope(fields, spec);
  return spec;
}

}  // namespace outrider
