// The vocabulary of types that every folder shares.
#pragma once

#include <cstdint>

namespace outrider {

// A token id, in [0, vocabulary size).
using TokenId = int32_t;

}  // namespace outrider
