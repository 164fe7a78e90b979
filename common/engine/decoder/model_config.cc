#include "common/engine/decoder/model_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/engine/decoder/field_reader.h"
#include "common/engine/decoder/gguf_model.h"
#include "common/gguf/model_path.h"
#include "common/spec/status.h"
#include "common/text/json.h"

namespace outrider {
namespace {

// --- Fields that families have in common ---

// Reads sizes, the norms' epsilon, and whether the head is the embedding: `tied` if the field is absent.
void ReadSizes(FieldReader& fields, DecoderConfig& spec, bool tied = false) {
  spec.vocab_size = fields.Int("vocab_size", 1);
  spec.hidden_size = fields.Int("hidden_size", 2, kMaxSizes.hidden);
  spec.intermediate_size = fields.Int("intermediate_size", 2, kMaxSizes.intermediate);
  spec.layers = fields.Int("num_hidden_layers", 1, kMaxSizes.layers);
  spec.heads = fields.Int("num_attention_heads", 1, kMaxSizes.heads);
  spec.kv_heads = fields.Has("num_key_value_heads") ? fields.Int("num_key_value_heads", 1) : spec.heads;
  spec.max_position_embeddings = fields.Int("max_position_embeddings", 1);
  spec.rms_norm_eps = fields.Positive("rms_norm_eps");
  spec.tie_word_embeddings = fields.Bool("tie_word_embeddings", tied);
  if (!fields.status().ok()) return;

  if (spec.heads % spec.kv_heads != 0)
    fields.Fail("num_key_value_heads", "does not divide num_attention_heads");
  if (fields.Has("head_dim")) {
    spec.head_dim = fields.Int("head_dim", 2, kMaxSizes.head_dim);
  } else {
    if (spec.hidden_size % spec.heads != 0) fields.Fail("num_attention_heads", "does not divide hidden_size");
    spec.head_dim = spec.hidden_size / spec.heads;
  }
  if (spec.head_dim % 2 != 0) fields.Fail("head_dim", "is odd: ", spec.head_dim);
  if (spec.hidden_size % 2 != 0) fields.Fail("hidden_size", "is odd: ", spec.hidden_size);
  if (spec.intermediate_size % 2 != 0) fields.Fail("intermediate_size", "is odd: ", spec.intermediate_size);
}

// Reads the rope parameters of all layers, or of those that do not slide.
void ReadRopeParameters(FieldReader& rope, DecoderConfig& spec) {
  if (rope.Has("rope_theta")) spec.rope_theta = rope.Positive("rope_theta");
  const char* kind_name = rope.Has("rope_type") ? "rope_type" : "type";
  const std::string kind = rope.String(kind_name, "default");
  if (kind == "llama3") {
    Llama3RopeScaling& scaling = spec.rope_scaling.emplace();
    scaling.factor = rope.Positive("factor");
    scaling.low_freq_factor = rope.Positive("low_freq_factor");
    scaling.high_freq_factor = rope.Positive("high_freq_factor");
    scaling.original_max_position_embeddings = rope.Int("original_max_position_embeddings", 1);
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      rope.Fail("high_freq_factor", "is not above low_freq_factor");
    }
  } else if (kind == "linear") {
    spec.rope_linear_factor = rope.Positive("factor");
  } else if (kind != "default") {
    rope.Fail(kind_name, "is none of \"default\", \"linear\" and \"llama3\": \"", kind, "\"");
  }
}

// Reads from `layer_types` which layers slide; empty if the field is absent.
std::vector<bool> ReadLayerTypes(FieldReader& fields, int layers) {
  if (!fields.Has("layer_types")) return {};
  const nlohmann::json& types = fields.At("layer_types");
  std::vector<bool> slides;
  for (const nlohmann::json& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      fields.Fail("layer_types", "has ", DumpJson(type),
                  ", which is neither full_attention nor sliding_attention");
    }
    slides.push_back(type == "sliding_attention");
  }
  if (!types.is_array() || static_cast<int>(slides.size()) != layers) {
    fields.Fail("layer_types", "is no list of num_hidden_layers types");
  }
  return slides;
}

// Reads `sliding_window`: 4096 if it is absent, none if it is null. Reads which layers slide from
// `layer_types`; if that is absent, slides(layer) says so.
void ReadSlidingLayers(FieldReader& fields, DecoderConfig& spec, absl::FunctionRef<bool(int layer)> slides) {
  spec.sliding_window = fields.IsAbsent("sliding_window") ? 4096
                        : fields.Has("sliding_window")    ? fields.Int("sliding_window", 1)
                                                          : 0;
  if (spec.sliding_window == 0) return;
  spec.slides = ReadLayerTypes(fields, spec.layers);
  if (spec.slides.empty()) {
    for (int layer = 0; layer < spec.layers; ++layer) spec.slides.push_back(slides(layer));
  }
  if (std::find(spec.slides.begin(), spec.slides.end(), true) == spec.slides.end()) {
    spec.slides.clear();
    spec.sliding_window = 0;
  }
}

// --- The families ---

void ReadLlama(FieldReader& fields, DecoderConfig& spec) {
  RequireValue(fields, "hidden_act", "silu");
  for (const char* name : {"attention_bias", "mlp_bias"}) {
    RefuseTrue(fields, name, "biases are not supported");
  }
  ReadSizes(fields, spec);
  ReadRope(fields, spec);
}

void ReadMistral(FieldReader& fields, DecoderConfig& spec) {
  RequireValue(fields, "hidden_act", "silu");
  ReadSizes(fields, spec);
  ReadRope(fields, spec);
  ReadSlidingLayers(fields, spec, [](int /*layer*/) { return true; });
}

void ReadQwen(FieldReader& fields, DecoderConfig& spec) {
  RequireValue(fields, "hidden_act", "silu");
  ReadSizes(fields, spec);
  ReadRope(fields, spec);
  // Configs often give the window without using it.
  if (!fields.Bool("use_sliding_window", false)) return;
  const int first = fields.Has("max_window_layers") ? fields.Int("max_window_layers", 0) : 28;
  ReadSlidingLayers(fields, spec, [first](int layer) { return layer >= first; });
}

void ReadQwen2(FieldReader& fields, DecoderConfig& spec) {
  ReadQwen(fields, spec);
  spec.qkv_bias = true;
}

void ReadQwen3(FieldReader& fields, DecoderConfig& spec) {
  RefuseTrue(fields, "attention_bias", "a bias on the attention's output is not supported");
  ReadQwen(fields, spec);
  if (!fields.Has("head_dim")) spec.head_dim = 128;  // transformers' default, whatever the hidden size
  spec.qk_norm = true;
}

void ReadGemma(FieldReader& fields, DecoderConfig& spec) {
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
  if (!fields.Has("head_dim")) spec.head_dim = 256;  // transformers' default, whatever the hidden size
}

// `otherwise` if the field is absent; null means none.
std::optional<double> ReadSoftcap(FieldReader& fields, const char* name, std::optional<double> otherwise) {
  if (fields.IsAbsent(name)) return otherwise;
  return fields.Has(name) ? std::optional(fields.Positive(name)) : std::nullopt;
}

void ReadGemma2(FieldReader& fields, DecoderConfig& spec) {
  ReadGemma(fields, spec);
  spec.attention_softcap = ReadSoftcap(fields, "attn_logit_softcapping", 50);
  spec.final_softcap = ReadSoftcap(fields, "final_logit_softcapping", 30);
  ReadSlidingLayers(fields, spec, [](int layer) { return layer % 2 == 0; });
}

void ReadGemma3(FieldReader& fields, DecoderConfig& spec) {
  spec.rope_theta = 1e6;
  spec.sliding_rope_theta = 1e4;
  ReadGemma(fields, spec);
  spec.attention_softcap = ReadSoftcap(fields, "attn_logit_softcapping", std::nullopt);
  spec.final_softcap = ReadSoftcap(fields, "final_logit_softcapping", std::nullopt);
  if (fields.Has("rope_local_base_freq")) spec.sliding_rope_theta = fields.Positive("rope_local_base_freq");
  const int pattern = fields.Has("sliding_window_pattern") ? fields.Int("sliding_window_pattern", 1) : 6;
  ReadSlidingLayers(fields, spec, [pattern](int layer) { return (layer + 1) % pattern != 0; });
  spec.qk_norm = true;
}

struct Family {
  const char* model_type;
  const char* architecture;
  void (*read)(FieldReader& fields, DecoderConfig& spec);
};

constexpr Family kFamilies[] = {
    {"llama", "LlamaForCausalLM", ReadLlama},    {"qwen2", "Qwen2ForCausalLM", ReadQwen2},
    {"qwen3", "Qwen3ForCausalLM", ReadQwen3},    {"mistral", "MistralForCausalLM", ReadMistral},
    {"gemma2", "Gemma2ForCausalLM", ReadGemma2}, {"gemma3_text", "Gemma3ForCausalLM", ReadGemma3}};

// Refuses, naming the field, what DecoderConfig cannot express: an unknown family, another architecture or
// activation, biases, an unknown kind of rope. The result is meaningless if `fields` has an error.
DecoderConfig ReadDecoder(FieldReader& fields) {
  const std::string model_type = fields.String("model_type", "");
  DecoderConfig spec;
  for (const Family& family : kFamilies) {
    if (model_type != family.model_type) continue;
    const nlohmann::json only = nlohmann::json::array({family.architecture});
    if (fields.Has("architectures") && fields.At("architectures") != only) {
      fields.Fail("architectures", "is not ", DumpJson(only), ": ", DumpJson(fields.At("architectures")));
    }
    family.read(fields, spec);
    return spec;
  }
  const auto name = [](std::string* out, const Family& family) { absl::StrAppend(out, family.model_type); };
  fields.Fail("model_type", model_type.empty() ? "is missing" : absl::StrCat("is \"", model_type, "\""),
              "; supported: ", absl::StrJoin(kFamilies, ", ", name));
  return spec;
}

}  // namespace

void ReadRope(FieldReader& fields, DecoderConfig& spec) {
  if (fields.Has("rope_theta")) spec.rope_theta = fields.Positive("rope_theta");
  for (const char* spelling : {"rope_scaling", "rope_parameters"}) {
    if (!fields.Has(spelling)) continue;
    FieldReader rope = fields.Nested(spelling);
    if (rope.Has("full_attention") && rope.Has("sliding_attention")) {
      FieldReader full = rope.Nested("full_attention"), sliding = rope.Nested("sliding_attention");
      ReadRopeParameters(full, spec);
      RequireValue(sliding, "rope_type", "default");
      spec.sliding_rope_theta = sliding.Positive("rope_theta");
    } else {
      ReadRopeParameters(rope, spec);
    }
  }
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& model) {
  if (IsGguf(model)) {
    const GgufFile file = OUTRIDER_TRY(GgufFile::Open(model));
    return ReadGgufConfig(file);
  }
  const std::string path = FileOf(model, "config.json");
  nlohmann::json json = OUTRIDER_TRY(JsonObjectIn(path));
  FieldReader fields(path, json);
  ModelConfig config;
  config.decoder = ReadDecoder(fields);
  config.quantization = ReadQuantization(fields);
  if (config.quantization) config.packed = QuantizationInWords(*config.quantization);
  if (config.quantization && !MayLieInBlocks(*config.quantization)) config.no_blocks = config.packed;
  config.dtype = fields.String(fields.Has("dtype") ? "dtype" : "torch_dtype", "");
  const int vocab = config.decoder.vocab_size;
  config.bos_token_id = fields.FirstTokenId("bos_token_id", vocab);
  config.eos_token_ids = fields.TokenIds("eos_token_id", vocab);
  config.mask_token_id = fields.FirstTokenId("mask_token_id", vocab);
  OUTRIDER_TRY(fields.status());

  const std::string generation_path = FileOf(model, "generation_config.json");
  nlohmann::json generation_json = OUTRIDER_TRY(JsonObjectIfThere(generation_path));
  FieldReader generation(generation_path, generation_json);
  if (generation.Has("eos_token_id")) config.eos_token_ids = generation.TokenIds("eos_token_id", vocab);
  OUTRIDER_TRY(generation.status());
  return config;
}

}  // namespace outrider
