// How byte-level vocabularies split text into words, by the names that llama.cpp gave to the ways
// (tokenizer.ggml.pre of GGUF files).
#pragma once

#include <string_view>
#include <vector>

namespace outrider {

// As the model's tokenizer.json has it.
struct GgufSplit {
  std::vector<std::string_view> names;
  std::vector<std::string_view> patterns;  // for SplitStep, one after the other
  bool composes = false;                   // normalization form C
  bool ignores_merges = false;             // TokenizerSpec::ignore_merges
  bool adds_bos = false;                   // unless the file says otherwise
};

// Null if the name is not known.
const GgufSplit* FindGgufSplit(std::string_view name);

}  // namespace outrider
