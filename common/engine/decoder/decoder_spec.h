// What a forward pass has to compute: the sizes and constants of a decoder, of whatever family.
#pragma once

#include <optional>

namespace outrider {

// Llama 3's frequency-dependent scaling of the rotary embedding ("rope_type": "llama3").
struct Llama3RopeScaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int original_max_position_embeddings = 8192;
};

// A decoder embeds tokens. Each layer adds to the residual stream attention over an RMS norm of it, with
// rotary positions and KV heads that groups of heads share, and then an MLP gated by SiLU over another RMS
// norm. A last norm and the head give the logits. No product has a bias. A family that differs adds the field
// that says so.
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
  bool tie_word_embeddings = false;  // the head is the embedding
};

}  // namespace outrider
