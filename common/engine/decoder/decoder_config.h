// The architecture of a decoder, for every model family: the sizes and constants that a forward pass needs,
// the angles of its rotary embedding, and the names and shapes of its tensors in the model files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/spec/types.h"

namespace outrider {

// Llama 3's frequency-dependent scaling of rotary embeddings ("rope_type": "llama3").
struct Llama3RopeScaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int original_max_position_embeddings = 8192;
};

enum class Activation : uint8_t { kSilu, kGeluTanh };

// A pre-norm decoder. Each layer adds to the residual stream first the attention over its RMS norm, with
// rotary positions and grouped-query heads, then a gated MLP over its RMS norm. A final norm and the head
// give the logits. The first fields describe Llama; features of other families are off by default.
struct DecoderConfig {
  int vocab_size = 0;
  std::vector<TokenId> head_tokens = {};  // the tokens of a cut head (frequent_head.h); empty: not cut
  int hidden_size = 0;
  int intermediate_size = 0;
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;  // divides heads
  int head_dim = 0;  // even; not always hidden_size / heads
  int max_position_embeddings = 0;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000;
  std::optional<Llama3RopeScaling> rope_scaling = std::nullopt;
  std::vector<float> rope_factors = {};  // divisors of the frequencies, one per pair; empty: none
  bool tie_word_embeddings = false;      // the head is the embedding matrix

  // Qwen and Mistral.
  bool qkv_bias = false;  // a bias on queries, keys and values
  bool qk_norm = false;   // an RMS norm of each head's query and key, before they are rotated
  // In sliding layers, a row attends to this many positions, the last of which is its own.
  int sliding_window = 0;
  std::vector<bool> slides = {};  // by layer; empty: no layer slides

  // Gemma.
  Activation activation = Activation::kSilu;
  bool norms_plus_one = false;  // norms are stored minus 1
  bool output_norms = false;    // the outputs of attention and MLP are normalised before they are added
  std::optional<double> embedding_scale = std::nullopt;     // of the token's embedding
  std::optional<double> query_scale = std::nullopt;         // in place of 1 / sqrt(head_dim)
  std::optional<double> attention_softcap = std::nullopt;   // cap * tanh(score / cap)
  std::optional<double> final_softcap = std::nullopt;       // likewise, of the logits
  std::optional<double> sliding_rope_theta = std::nullopt;  // of sliding layers, which have no scaling
  double rope_linear_factor = 1;                            // divides the other layers' frequencies

  // EAGLE: a layer that continues another model's hidden states. It has neither embedding nor head: the
  // caller embeds its rows, and multiplies its states by the other model's head.
  bool outer_norms = true;  // the first layer's attention and the head take normalised rows
  int first_position = 0;   // the first position with a row; no row attends to an earlier one
  // EAGLE-3: how many columns the first layer's attention reads in place of the residual stream; 0: none.
  // Only without outer_norms; a row's embedding is then the residual stream followed by these columns.
  int attention_input = 0;

  // How many numbers the keys and values of a token have, in all layers: [layers, 2, kv_heads, head_dim].
  size_t kv_numbers() const {
    return 2 * static_cast<size_t>(layers) * static_cast<size_t>(kv_heads) * static_cast<size_t>(head_dim);
  }
  int embedding_columns() const { return hidden_size + attention_input; }
  int logit_columns() const {
    return head_tokens.empty() ? vocab_size : static_cast<int>(head_tokens.size());
  }
  bool Slides(int layer) const { return !slides.empty() && slides[static_cast<size_t>(layer)]; }
};

// Inverse frequencies of the head_dim / 2 pairs, scaled if the model scales them. Computed in float32 as in
// transformers, so that the angles agree at far positions.
std::vector<float> RopeInverseFrequencies(const DecoderConfig& spec);
// The same for sliding layers.
std::vector<float> SlidingRopeInverseFrequencies(const DecoderConfig& spec);

// cosines[position * head_dim / 2 + i], and sines likewise, for positions [0, positions).
struct RopeTable {
  RopeTable(const DecoderConfig& spec, int positions);

  std::vector<float> cosines;
  std::vector<float> sines;
};

struct StoredTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// A matrix of the forward pass. Its rows are those of all parts, in order; each part is [*, k].
struct StoredMatrix {
  std::string name;  // for messages
  std::vector<StoredTensor> parts;
};

struct LayerTensors {
  StoredTensor attention_norm;         // [hidden]
  StoredMatrix qkv;                    // queries, keys, values of all heads
  std::vector<StoredTensor> qkv_bias;  // of the parts of qkv; empty unless spec.qkv_bias
  std::vector<StoredTensor> qk_norm;   // for queries and for keys: [head_dim]; empty unless spec.qk_norm
  StoredMatrix attention_out;
  std::vector<StoredTensor>
      output_norms;  // for attention and for the MLP: [hidden]; empty unless spec.output_norms
  StoredTensor mlp_norm;
  StoredMatrix gate_up;  // gate, up
  StoredMatrix mlp_out;
};

struct DecoderTensors {
  StoredTensor embedding;  // [vocab, hidden]
  std::vector<LayerTensors> layers;
  StoredTensor final_norm;
  StoredMatrix head;  // the embedding if spec.tie_word_embeddings
};

DecoderTensors TensorsOf(const DecoderConfig& spec);

}  // namespace outrider
