// What draft and target must have in common, as one number.
#pragma once

#include <cstdint>
#include <span>

#include "common/spec/types.h"

namespace outrider {

// Hash of what gives token ids their meaning: the tokenizer (Tokenizer::Fingerprint), the number of logits a
// row has, and the ids that end a text.
uint64_t ModelFingerprint(uint64_t tokenizer, int vocab_size, std::span<const TokenId> eos_ids);

}  // namespace outrider
