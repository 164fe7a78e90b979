// The architecture of a decoder: the sizes and constants that a forward pass needs, for every model family.
#pragma once

#include <optional>

namespace outrider {

// Llama 3's frequency-dependent scaling of rotary embeddings ("rope_type": "llama3").
struct Llama3RopeScaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int original_max_position_embeddings = 8192;
};

// A pre-norm decoder. Each layer adds to the residual stream first the attention over its RMS norm, with
// rotary positions and grouped-query heads, then a SiLU-gated MLP over its RMS norm. A final norm and the
// head give the logits. There are no biases. A family that differs adds a field for the difference.
struct DecoderSpec {
  int vocab_size = 0;
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
  bool tie_word_embeddings = false;  // the head is the embedding matrix
};

}  // namespace outrider
