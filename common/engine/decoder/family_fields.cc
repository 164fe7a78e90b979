#include "common/engine/decoder/family_fields.h"

#include <string>

namespace outrider {
namespace {

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

// The parameters of all layers, or of those that do not slide.
void ReadRopeParameters(FieldReader& rope, DecoderSpec& spec) {
  if (rope.Has("rope_theta")) spec.rope_theta = rope.Positive("rope_theta");
  const char* kind_name = rope.Has("rope_type") ? "rope_type" : "type";
  const std::string kind = rope.String(kind_name, "default");
  if (kind == "llama3") {
    spec.rope_scaling = ReadLlama3Scaling(rope);
  } else if (kind == "linear") {
    spec.rope_linear_factor = rope.Positive("factor");
  } else if (kind != "default") {
    rope.Fail(kind_name, "is none of \"default\", \"linear\" and \"llama3\": \"", kind, "\"");
  }
}

}  // namespace

void RequireArchitecture(FieldReader& fields, const char* name) {
  if (fields.Has("architectures") && fields.At("architectures") != nlohmann::json::array({name})) {
    fields.Fail("architectures", "is not [\"", name, "\"]: ", fields.At("architectures").dump());
  }
}

void RequireValue(FieldReader& fields, const char* field, const char* value) {
  if (fields.String(field, value) != value) {
    fields.Fail(field, "is not \"", value, "\": ", fields.At(field).dump());
  }
}

void RefuseTrue(FieldReader& fields, const char* field, const char* why) {
  if (fields.Bool(field, false)) fields.Fail(field, "is true: ", why);
}

void ReadSizes(FieldReader& fields, DecoderSpec& spec, bool tied) {
  spec.vocab_size = fields.Int("vocab_size", 1);
  spec.hidden_size = fields.Int("hidden_size", 2, 1 << 20);
  spec.intermediate_size = fields.Int("intermediate_size", 2, 1 << 24);
  spec.layers = fields.Int("num_hidden_layers", 1, 1 << 16);
  spec.heads = fields.Int("num_attention_heads", 1, 1 << 16);
  spec.kv_heads = fields.Has("num_key_value_heads") ? fields.Int("num_key_value_heads", 1) : spec.heads;
  spec.max_position_embeddings = fields.Int("max_position_embeddings", 1);
  spec.rms_norm_eps = fields.Positive("rms_norm_eps");
  spec.tie_word_embeddings = fields.Bool("tie_word_embeddings", tied);
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

void ReadRope(FieldReader& fields, DecoderSpec& spec) {
  if (fields.Has("rope_theta")) spec.rope_theta = fields.Positive("rope_theta");
  for (const char* spelling : {"rope_scaling", "rope_parameters"}) {
    if (!fields.Has(spelling)) continue;
    FieldReader rope = fields.Nested(spelling);
    if (rope.Has("full_attention") && rope.Has("sliding_attention")) {
      FieldReader full = rope.Nested("full_attention"), sliding = rope.Nested("sliding_attention");
      ReadRopeParameters(full, spec);
      RequireValue(sliding, "rope_type", "default");
      spec.sliding_rope_theta = sliding.Positive("rope_theta");
      rope.TakeError(full);
      rope.TakeError(sliding);
    } else {
      ReadRopeParameters(rope, spec);
    }
    fields.TakeError(rope);
  }
}

std::vector<bool> family_internal::ReadLayerTypes(FieldReader& fields, int layers) {
  if (!fields.Has("layer_types")) return {};
  const nlohmann::json& types = fields.At("layer_types");
  std::vector<bool> slides;
  for (const nlohmann::json& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      fields.Fail("layer_types", "has ", type.dump(),
                  ", which is neither full_attention nor sliding_attention");
    }
    slides.push_back(type == "sliding_attention");
  }
  if (!types.is_array() || static_cast<int>(slides.size()) != layers) {
    fields.Fail("layer_types", "is no list of num_hidden_layers types");
  }
  return slides;
}

}  // namespace outrider
