// How large a KV pool becomes that is sized by the memory there is.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace outrider {

// Blocks of `block_bytes` in `bytes`, at least one, but no more than `max_sequences` of the longest sequences
// can ever use.
inline int KvBlocksThatFit(double bytes, size_t block_bytes, int max_positions, int block_size,
                           int max_sequences) {
  const double longest = std::ceil(static_cast<double>(max_positions) / block_size);
  return static_cast<int>(std::clamp(bytes / static_cast<double>(block_bytes), 1.0, max_sequences * longest));
}

}  // namespace outrider
