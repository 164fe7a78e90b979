// Writes Llama model directories with generated weights, for benchmarks that need a shape but no meaningful
// text.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace outrider {

// The default is the shipped target's shape with a longer context. The embedding is tied to the head.
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

// Truncates to bfloat16, the upper half of a float32.
inline uint16_t BFloat16(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }

// Fills in one row of a matrix, which is 0 before.
using FillRow = std::function<void(const std::string& tensor, int row, std::span<uint16_t> values)>;

// Fills rows from random offsets of one small table of random numbers, so that gigabytes are written at the
// speed of a copy.
class RandomRows {
 public:
  RandomRows() {
    std::normal_distribution<float> normal(0, 0.02F);
    for (uint16_t& value : table_) value = BFloat16(normal(random_));
  }
  void operator()(const std::string& /*tensor*/, int /*row*/, std::span<uint16_t> values) {
    for (size_t done = 0; done < values.size();) {
      const size_t from = random_() % table_.size();
      const size_t count = std::min(values.size() - done, table_.size() - from);
      std::copy_n(table_.begin() + static_cast<ptrdiff_t>(from), count,
                  values.begin() + static_cast<ptrdiff_t>(done));
      done += count;
    }
  }

 private:
  std::minstd_rand random_{1};
  std::vector<uint16_t> table_ = std::vector<uint16_t>(1 << 16);
};

struct TensorShape {
  std::string name;
  int rows;  // 1 for the vector of a norm
  int columns;
};

// The tensors of a model, in storage order.
inline std::vector<TensorShape> TensorsOf(const ModelShape& shape) {
  std::vector<TensorShape> tensors = {{"model.embed_tokens.weight", shape.vocab, shape.hidden}};
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const int queries = shape.heads * shape.head_dim, keys = shape.kv_heads * shape.head_dim;
    tensors.insert(tensors.end(), {{prefix + "input_layernorm.weight", 1, shape.hidden},
                                   {prefix + "self_attn.q_proj.weight", queries, shape.hidden},
                                   {prefix + "self_attn.k_proj.weight", keys, shape.hidden},
                                   {prefix + "self_attn.v_proj.weight", keys, shape.hidden},
                                   {prefix + "self_attn.o_proj.weight", shape.hidden, queries},
                                   {prefix + "post_attention_layernorm.weight", 1, shape.hidden},
                                   {prefix + "mlp.gate_proj.weight", shape.intermediate, shape.hidden},
                                   {prefix + "mlp.up_proj.weight", shape.intermediate, shape.hidden},
                                   {prefix + "mlp.down_proj.weight", shape.hidden, shape.intermediate}});
  }
  tensors.push_back({"model.norm.weight", 1, shape.hidden});
  return tensors;
}

inline uint64_t ModelBytes(const ModelShape& shape) {
  uint64_t bytes = 0;
  for (const TensorShape& tensor : TensorsOf(shape)) bytes += uint64_t{2} * tensor.rows * tensor.columns;
  return bytes;
}

// Writes config.json and model.safetensors. Norms are ones; matrices come from `fill`, one row at a time, so
// that only one row is in memory. Returns false if a file cannot be written.
inline bool WriteModel(const std::filesystem::path& folder, const ModelShape& shape, const FillRow& fill) {
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
  std::ofstream(folder / "config.json") << config.dump(1);

  const std::vector<TensorShape> tensors = TensorsOf(shape);
  nlohmann::json header;
  uint64_t begin = 0;
  for (const TensorShape& tensor : tensors) {
    const uint64_t end = begin + uint64_t{2} * tensor.rows * tensor.columns;
    std::vector<int> dimensions = {tensor.rows, tensor.columns};
    if (tensor.rows == 1) dimensions = {tensor.columns};
    header[tensor.name] = {{"dtype", "BF16"}, {"shape", dimensions}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the values
  const uint64_t length = text.size();
  std::ofstream weights(folder / "model.safetensors", std::ios::binary);
  weights.write(reinterpret_cast<const char*>(&length), sizeof(length));
  weights << text;
  std::vector<uint16_t> row;
  for (const TensorShape& tensor : tensors) {
    for (int r = 0; r < tensor.rows && weights.good(); ++r) {
      row.assign(static_cast<size_t>(tensor.columns), BFloat16(tensor.rows == 1 ? 1 : 0));
      if (tensor.rows > 1) fill(tensor.name, r, row);
      weights.write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(2 * row.size()));
    }
  }
  weights.close();
  return weights.good() && std::filesystem::exists(folder / "config.json");
}

}  // namespace outrider
