// The configuration of a Hugging Face model directory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/decoder/field_reader.h"
#include "common/engine/decoder/quantization.h"
#include "common/spec/types.h"

namespace outrider {

struct ModelConfig {
  DecoderSpec decoder;
  std::optional<TokenId> bos_token_id;
  std::vector<TokenId> eos_token_ids;  // from generation_config.json if it has them; may be empty
  std::string dtype;                   // of the stored weights: "float32", "bfloat16", "float16" or empty
  std::optional<Quantization> quantization;
};

// Reads `model_dir`/config.json and, for the end-of-sequence ids, generation_config.json if it exists. The
// field model_type selects the family.
//
// NOT_FOUND if config.json is missing; INVALID_ARGUMENT, naming the file and the field, for a value that is
// missing, of the wrong type, out of range or not supported (an unknown family, with the list of known ones;
// another architecture; weights quantised in a way that cannot be unpacked).
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& model_dir);

// Reads the rotary embedding, in both spellings: `rope_theta` beside `rope_scaling`, or everything inside
// `rope_parameters` (transformers 5), there for each type of layer if they differ.
void ReadRope(FieldReader& fields, DecoderSpec& spec);

}  // namespace outrider
