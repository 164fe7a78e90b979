// The id of a block of the paged KV cache. The pool deals in ids only; the engine maps an id to memory.
#pragma once

#include <cstdint>

namespace outrider {

// In [0, number of blocks in the pool).
using BlockId = int32_t;

}  // namespace outrider
