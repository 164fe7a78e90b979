#include "common/engine/decoder/tensor_names.h"

#include "absl/strings/str_cat.h"

namespace outrider {
namespace {

LayerTensors TensorsOfLayer(const DecoderSpec& spec, int layer) {
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

DecoderTensors TensorsOf(const DecoderSpec& spec) {
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
