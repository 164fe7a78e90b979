// A Llama model directory with random weights, for measurements that need a shape and not a text.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace outrider {

// By default the shipped target's, with a longer context.
struct ModelShape {
  int vocab = 4096;
  int hidden = 384;
  int intermediate = 1024;
  int layers = 6;
  int heads = 6;
  int kv_heads = 2;
  int head_dim = 64;
  int context = 8192;
};

// Writes config.json and model.safetensors in bfloat16, with tied embeddings. False if a file cannot be
// written.
inline bool WriteRandomModel(const std::filesystem::path& folder, const ModelShape& shape) {
  const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                                 {"model_type", "llama"},
                                 {"hidden_act", "silu"},
                                 {"vocab_size", shape.vocab},
                                 {"hidden_size", shape.hidden},
                                 {"intermediate_size", shape.intermediate},
                                 {"num_hidden_layers", shape.layers},
                                 {"num_attention_heads", shape.heads},
                                 {"num_key_value_heads", shape.kv_heads},
                                 {"head_dim", shape.head_dim},
                                 {"max_position_embeddings", shape.context},
                                 {"rms_norm_eps", 1e-5},
                                 {"rope_theta", 10000.0},
                                 {"tie_word_embeddings", true},
                                 {"torch_dtype", "bfloat16"}};
  nlohmann::json header;
  std::vector<uint16_t> values;
  std::minstd_rand random(1);
  std::normal_distribution<float> normal(0, 0.02F);
  const auto add = [&](const std::string& name, const std::vector<int>& dimensions) {
    const size_t begin = values.size();
    size_t count = 1;
    for (int dimension : dimensions) count *= static_cast<size_t>(dimension);
    // Norms are vectors, and ones; bfloat16 is the upper half of a float32.
    for (size_t i = 0; i < count; ++i) {
      const float value = dimensions.size() == 1 ? 1.0F : normal(random);
      values.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
    }
    header[name] = {
        {"dtype", "BF16"}, {"shape", dimensions}, {"data_offsets", {2 * begin, 2 * values.size()}}};
  };
  add("model.embed_tokens.weight", {shape.vocab, shape.hidden});
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    add(prefix + "input_layernorm.weight", {shape.hidden});
    add(prefix + "self_attn.q_proj.weight", {shape.heads * shape.head_dim, shape.hidden});
    add(prefix + "self_attn.k_proj.weight", {shape.kv_heads * shape.head_dim, shape.hidden});
    add(prefix + "self_attn.v_proj.weight", {shape.kv_heads * shape.head_dim, shape.hidden});
    add(prefix + "self_attn.o_proj.weight", {shape.hidden, shape.heads * shape.head_dim});
    add(prefix + "post_attention_layernorm.weight", {shape.hidden});
    add(prefix + "mlp.gate_proj.weight", {shape.intermediate, shape.hidden});
    add(prefix + "mlp.up_proj.weight", {shape.intermediate, shape.hidden});
    add(prefix + "mlp.down_proj.weight", {shape.hidden, shape.intermediate});
  }
  add("model.norm.weight", {shape.hidden});

  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // values are aligned
  const uint64_t length = text.size();
  std::ofstream weights(folder / "model.safetensors", std::ios::binary);
  weights.write(reinterpret_cast<const char*>(&length), sizeof(length));
  weights << text;
  weights.write(reinterpret_cast<const char*>(values.data()),
                static_cast<std::streamsize>(2 * values.size()));
  std::ofstream(folder / "config.json") << config.dump(1);
  return weights.good() && std::filesystem::exists(folder / "config.json");
}

}  // namespace outrider
