// The ways in which byte-level vocabularies split text into words, by llama.cpp's names for them
// (tokenizer.ggml.pre of GGUF files).
#pragma once

#include <string_view>
#include <vector>

namespace outrider {

// The split that the model's tokenizer.json defines.
struct GgufSplit {
  std::vector<std::string_view> names;
  std::vector<std::string_view> patterns;  // for SplitStep, one after the other
  bool composes = false;                   // normalization form C
  bool ignores_merges = false;             // TokenizerSpec::ignore_merges
  bool adds_bos = false;                   // whether a text begins with BOS, unless the file says otherwise
};

// Null if the name is not known.
const GgufSplit* FindGgufSplit(std::string_view name);

}  // namespace outrider
