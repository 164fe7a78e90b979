// The name of a block of the paged KV cache, shared by the pool (which knows only names) and the engine
// (which knows where the memory behind a name is).
#pragma once

#include <cstdint>

namespace outrider {

// In [0, number of blocks in the pool).
using BlockId = int32_t;

}  // namespace outrider
