#include "common/engine/decoder/decoder_config.h"

#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"

namespace outrider {
namespace {

LayerTensors TensorsOfLayer(const DecoderConfig& spec, int layer) {
  const std::string name = absl::StrCat("model.layers.", layer, ".");
  const std::string attention = name + "self_attn", mlp = name + "mlp";
  const int64_t hidden = spec.hidden_size;
  const int64_t intermediate = spec.intermediate_size;
  const int64_t queries = int64_t{spec.heads} * spec.head_dim;
  const int64_t keys = int64_t{spec.kv_heads} * spec.head_dim;
  const int64_t attended = layer == 0 && spec.attention_input > 0 ? spec.attention_input : hidden;
  LayerTensors tensors = {
      .attention_norm = {name + "input_layernorm.weight", {hidden}},
      .qkv = {attention,
              {{attention + ".q_proj.weight", {queries, attended}},
               {attention + ".k_proj.weight", {keys, attended}},
               {attention + ".v_proj.weight", {keys, attended}}}},
      .qkv_bias = {},
      .qk_norm = {},
      .attention_out = {attention + ".o_proj", {{attention + ".o_proj.weight", {hidden, queries}}}},
      .output_norms = {},
      .mlp_norm = {name + "post_attention_layernorm.weight", {hidden}},
      .gate_up = {mlp,
                  {{mlp + ".gate_proj.weight", {intermediate, hidden}},
                   {mlp + ".up_proj.weight", {intermediate, hidden}}}},
      .mlp_out = {mlp + ".down_proj", {{mlp + ".down_proj.weight", {hidden, intermediate}}}},
  };
  if (spec.qkv_bias) {
    tensors.qkv_bias = {{attention + ".q_proj.bias", {queries}},
                        {attention + ".k_proj.bias", {keys}},
                        {attention + ".v_proj.bias", {keys}}};
  }
  if (spec.qk_norm) {
    tensors.qk_norm = {{attention + ".q_norm.weight", {spec.head_dim}},
                       {attention + ".k_norm.weight", {spec.head_dim}}};
  }
  if (spec.output_norms) {
    tensors.output_norms = {tensors.mlp_norm, {name + "post_feedforward_layernorm.weight", {hidden}}};
    tensors.mlp_norm.name = name + "pre_feedforward_layernorm.weight";
  }
  return tensors;
}

}  // namespace

std::vector<float> RopeInverseFrequencies(const DecoderConfig& spec) {
  std::vector<float> frequencies;
  for (int i = 0; i < spec.head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(spec.head_dim);
    float frequency = 1.0f / std::pow(static_cast<float>(spec.rope_theta), exponent);
    if (spec.rope_scaling.has_value()) {
      const Llama3RopeScaling& scaling = *spec.rope_scaling;
      const double original = scaling.original_max_position_embeddings;
      const double wavelength = 2 * std::numbers::pi / static_cast<double>(frequency);
      if (wavelength > original / scaling.low_freq_factor) {
        frequency = static_cast<float>(static_cast<double>(frequency) / scaling.factor);
      } else if (wavelength >= original / scaling.high_freq_factor) {
        const double smooth = (original / wavelength - scaling.low_freq_factor) /
                              (scaling.high_freq_factor - scaling.low_freq_factor);
        frequency = static_cast<float>((1 - smooth) * static_cast<double>(frequency) / scaling.factor +
                                       smooth * static_cast<double>(frequency));
      }
    }
    if (!spec.rope_factors.empty()) frequency /= spec.rope_factors[static_cast<size_t>(i / 2)];
    frequencies.push_back(frequency / static_cast<float>(spec.rope_linear_factor));
  }
  return frequencies;
}

std::vector<float> SlidingRopeInverseFrequencies(const DecoderConfig& spec) {
  if (!spec.sliding_rope_theta.has_value()) return RopeInverseFrequencies(spec);
  DecoderConfig unscaled = spec;
  unscaled.rope_theta = *spec.sliding_rope_theta;
  unscaled.rope_scaling.reset();
  unscaled.rope_factors.clear();
  unscaled.rope_linear_factor = 1;
  return RopeInverseFrequencies(unscaled);
}

RopeTable::RopeTable(const DecoderConfig& spec, int positions) {
  const std::vector<float> frequencies = RopeInverseFrequencies(spec);
  cosines.reserve(static_cast<size_t>(positions) * frequencies.size());
  sines.reserve(cosines.capacity());
  for (int position = 0; position < positions; ++position) {
    for (const float frequency : frequencies) {
      const float angle = static_cast<float>(position) * frequency;
      cosines.push_back(std::cos(angle));
      sines.push_back(std::sin(angle));
    }
  }
}

DecoderTensors TensorsOf(const DecoderConfig& spec) {
  const int64_t hidden = spec.hidden_size;
  const std::vector<int64_t> table = {spec.vocab_size, hidden};
  DecoderTensors tensors;
  tensors.embedding = {"model.embed_tokens.weight", table};
  for (int i = 0; i < spec.layers; ++i) tensors.layers.push_back(TensorsOfLayer(spec, i));
  tensors.final_norm = {"model.norm.weight", {hidden}};
  const std::string head = spec.tie_word_embeddings ? tensors.embedding.name : "lm_head.weight";
  tensors.head = {"lm_head", {{head, {spec.logit_columns(), hidden}}}};
  return tensors;
}

}  // namespace outrider
