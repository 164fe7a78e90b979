// Fingerprints of what draft and target must agree on, and of the tokenizer's part of it.
#pragma once

#include <cstdint>
#include <span>

#include "common/spec/types.h"
#include "common/text/tokenizer_spec.h"

namespace outrider {

// A hash of everything in a tokenizer that gives ids their meaning; see Tokenizer::Fingerprint.
uint64_t FingerprintOf(const TokenizerSpec& spec);

// A hash of what gives token ids their meaning: the tokenizer (Tokenizer::Fingerprint), the number of logits
// in a row, and the ids that end a text.
uint64_t ModelFingerprint(uint64_t tokenizer, int vocab_size, std::span<const TokenId> eos_ids);

}  // namespace outrider
