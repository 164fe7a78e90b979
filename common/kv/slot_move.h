// A change of place within the paged KV cache of one sequence.
#pragma once

namespace outrider {

// Keys and values that move from one slot of a sequence to another.
struct SlotMove {
  int from = 0;
  int to = 0;
  friend bool operator==(const SlotMove&, const SlotMove&) = default;
};

}  // namespace outrider
