// The shape of a Llama 3 family model, read from a Hugging Face model directory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/spec/types.h"

namespace outrider {

// Llama 3's frequency-dependent scaling of the rotary embedding ("rope_type": "llama3").
struct Llama3RopeScaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int original_max_position_embeddings = 8192;
};

struct ModelConfig {
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
  std::optional<Llama3RopeScaling> rope_scaling;
  bool tie_word_embeddings = false;
  std::optional<TokenId> bos_token_id;
  std::vector<TokenId> eos_token_ids;  // generation_config.json's, where it has them; may be empty
  std::string dtype;                   // of the stored weights: "float32", "bfloat16", "float16" or empty
};

// Reads `model_dir`/config.json and, for the end-of-sequence ids, generation_config.json where it exists.
// NOT_FOUND if config.json is missing; INVALID_ARGUMENT, naming the file and the field, for a value that is
// missing, of the wrong type, out of range, or of a model this engine does not run (another architecture or
// activation, biases, quantised weights, an unknown rope type).
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& model_dir);

}  // namespace outrider
