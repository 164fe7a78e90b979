// The id of a block of the paged KV cache. The pool deals in ids only; the engine maps an id to memory.
#pragma once

#include <cstdint>

namespace outrider {

// In [0, number of blocks in the pool).
using BlockId = int32_t;

// Keys and values that move from one slot of a sequence to another.
struct SlotMove {
  int from = 0;
  int to = 0;
  friend bool operator==(const SlotMove&, const SlotMove&) = default;
};

}  // namespace outrider
