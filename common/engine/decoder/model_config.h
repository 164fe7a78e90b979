// The configuration of a model: a Hugging Face model directory or a GGUF file.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/spec/types.h"

namespace outrider {

class FieldReader;

// Formats of a checkpoint's quantised weights. In all of them a weight is scale * (level - zero point). A
// scale and a zero point apply to `group_size` columns of a row, or to the whole row if that is 0.

// The format of llm-compressor: https://github.com/vllm-project/compressed-tensors. Its settings for
// activations are not read: none are quantised here.
struct CompressedTensors {
  bool floats = false;       // levels are floating-point numbers of the format E4M3, else integers
  bool packed = false;       // levels are packed in words of 32 bits, else one per byte
  int bits = 8;              // of a level: 8; if packed, 4 or 8
  bool one_scale = false;    // one scale for all rows
  int group_size = 0;        // 0 if one_scale
  bool zero_points = false;  // else they are 0

  bool operator==(const CompressedTensors&) const = default;
};

// Frantar et al., "GPTQ"; the format of AutoGPTQ (https://github.com/AutoGPTQ/AutoGPTQ) and GPTQModel.
struct Gptq {
  int bits = 4;  // of a level: 4 or 8
  int group_size = 0;
  bool ordered = false;  // each column names its group
  bool less_one = true;  // zero points are stored minus 1
};

// Lin et al., "AWQ"; the format "gemm" of AutoAWQ (https://github.com/casper-hansen/AutoAWQ), with levels of
// 4 bits.
struct Awq {
  int group_size = 0;
};

using Quantization = std::variant<CompressedTensors, Gptq, Awq>;

// Reads config.json's `quantization_config`; nullopt if there is none. Fails for a format that cannot be
// unpacked, naming the field and what is supported. Does not read which tensors are quantised: the files
// show it.
std::optional<Quantization> ReadQuantization(FieldReader& config);

// Whether matrices may be read in blocks (blocks.h): levels are integers, and groups are whole blocks.
bool MayLieInBlocks(const Quantization& quantization);

// In words, for a log: "gptq, int4, groups of 128".
std::string QuantizationInWords(const Quantization& quantization);

// Limits of sizes: beyond any real model, and small enough that no tensor's size overflows.
struct MaxSizes {
  int vocab = 1 << 24;
  int hidden = 1 << 20;
  int intermediate = 1 << 24;
  int layers = 1 << 16;
  int heads = 1 << 16;
  int head_dim = 1 << 12;
};
inline constexpr MaxSizes kMaxSizes;

struct ModelConfig {
  DecoderConfig decoder;
  std::optional<TokenId> bos_token_id;
  std::vector<TokenId> eos_token_ids;    // from generation_config.json if it has them; may be empty
  std::optional<TokenId> mask_token_id;  // stands for tokens that are not drafted yet (DraftOptions)
  std::string dtype;                     // of the stored weights: "float32", "bfloat16", "float16" or empty
  std::optional<Quantization> quantization;  // of a folder's weights
  std::string packed;                        // packed formats of the weights, for logs; empty: none
  std::string no_blocks;                     // those of `packed` that cannot be read in blocks
};

// Reads a GGUF file (gguf_model.h), or the config.json of a folder and, if it exists, its
// generation_config.json for the end-of-sequence ids. The field model_type selects the family.
//
// NOT_FOUND if config.json is missing; INVALID_ARGUMENT, naming the file and the field, for a value that is
// missing, of the wrong type, out of range or not supported (an unknown family, with the list of known ones;
// another architecture; weights quantised in a way that cannot be unpacked).
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& model);

// Reads the rotary embedding, in both spellings: `rope_theta` beside `rope_scaling`, or everything inside
// `rope_parameters` (transformers 5), with an object for each type of layer if these differ.
void ReadRope(FieldReader& fields, DecoderConfig& spec);

}  // namespace outrider
