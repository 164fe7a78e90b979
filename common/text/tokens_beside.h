// Added tokens that a model has not in its tokenizer.json but in the files beside it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/text/tokenizer_spec.h"

namespace outrider {

// Appends to `spec` what transformers' fast tokenizers add when they are loaded (4.57,
// PreTrainedTokenizerBase._from_pretrained): `added_tokens_decoder` of tokenizer_config.json, or without it
// what added_tokens.json and special_tokens_map.json have; then special tokens that are no token yet. A token
// that the vocabulary has keeps its id, others get the next ones. INVALID_ARGUMENT, naming the file, if one
// is damaged.
absl::Status AddTokensBeside(const std::string& folder, TokenizerSpec* spec);

}  // namespace outrider
