// The names and shapes of a decoder's tensors in the model files, for all loaders.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/engine/decoder/decoder_spec.h"

namespace outrider {

struct StoredTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// A matrix of the forward pass: the rows of all parts, in order, each part [*, k].
struct StoredMatrix {
  std::string name;  // for messages
  std::vector<StoredTensor> parts;
};

struct LayerTensors {
  StoredTensor attention_norm;         // [hidden]
  StoredMatrix qkv;                    // queries, keys, values of all heads
  std::vector<StoredTensor> qkv_bias;  // of the parts of qkv; empty unless spec.qkv_bias
  std::vector<StoredTensor> qk_norm;   // of a query, of a key: [head_dim]; empty unless spec.qk_norm
  StoredMatrix attention_out;
  std::vector<StoredTensor>
      output_norms;  // of attention, of the MLP: [hidden]; empty unless spec.output_norms
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

DecoderTensors TensorsOf(const DecoderSpec& spec);

}  // namespace outrider
