// A hash of everything in a tokenizer that gives ids their meaning; see Tokenizer::Fingerprint.
#pragma once

#include <cstdint>

#include "common/text/tokenizer_spec.h"

namespace outrider {

uint64_t FingerprintOf(const TokenizerSpec& spec);

}  // namespace outrider
