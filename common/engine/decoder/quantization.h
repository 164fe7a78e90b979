// How the weights of a checkpoint are quantised.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "common/engine/decoder/field_reader.h"

namespace outrider {

// In all formats a weight is scale * (level - zero point). A scale and a zero point serve `group_size`
// columns of a row, or the whole row if that is 0.

// The format of llm-compressor: https://github.com/vllm-project/compressed-tensors. Its settings for
// activations are not read: none are quantised here.
struct CompressedTensors {
  bool floats = false;       // levels are floating-point numbers of the format E4M3, else integers
  bool packed = false;       // in words of 32 bits, else one in a byte
  int bits = 8;              // of a level: 8, or packed 4
  bool one_scale = false;    // for all rows
  int group_size = 0;        // 0 if one_scale
  bool zero_points = false;  // else they are 0

  bool operator==(const CompressedTensors&) const = default;
};

// Frantar et al., "GPTQ"; the format of AutoGPTQ (https://github.com/AutoGPTQ/AutoGPTQ) and GPTQModel.
struct Gptq {
  int bits = 4;  // of a level: 4 or 8
  int group_size = 0;
  bool ordered = false;  // each column names its group
  bool less_one = true;  // zero points are stored less 1
};

// Lin et al., "AWQ"; the format "gemm" of AutoAWQ (https://github.com/casper-hansen/AutoAWQ), with levels of
// 4 bits.
struct Awq {
  int group_size = 0;
};

using Quantization = std::variant<CompressedTensors, Gptq, Awq>;

// Reads config.json's `quantization_config`; nullopt if there is none. Fails for a format that cannot be
// unpacked, naming the field and what is supported. Which tensors are quantised is not read: the files show
// it.
std::optional<Quantization> ReadQuantization(FieldReader& config);

// In words, for a log: "gptq, int4, groups of 128".
std::string QuantizationInWords(const Quantization& quantization);

}  // namespace outrider
