// What the JSON files of a Hugging Face model directory say about a model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/spec/types.h"

namespace outrider {

struct ModelConfig {
  DecoderSpec decoder;
  std::optional<TokenId> bos_token_id;
  std::vector<TokenId> eos_token_ids;  // generation_config.json's, where it has them; may be empty
  std::string dtype;                   // of the stored weights: "float32", "bfloat16", "float16" or empty
};

// Reads `model_dir`/config.json and, for the end-of-sequence ids, generation_config.json where it exists. The
// field model_type chooses the family whose file reads the decoder's part; a family that is not known is
// refused with the list of those that are.
//
// NOT_FOUND if config.json is missing; INVALID_ARGUMENT, naming the file and the field, for a value that is
// missing, of the wrong type, out of range, or of a model this engine does not run (another family or
// architecture, quantised weights).
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& model_dir);

}  // namespace outrider
