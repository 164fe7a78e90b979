// The size of a KV pool that is derived from the free memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace outrider {

// How many blocks of `block_bytes` fit into `bytes`: at least one, and at most what `max_sequences` sequences
// of maximum length can use.
inline int KvBlocksThatFit(double bytes, size_t block_bytes, int max_positions, int block_size,
                           int max_sequences) {
  const double longest = std::ceil(static_cast<double>(max_positions) / block_size);
  return static_cast<int>(std::clamp(bytes / static_cast<double>(block_bytes), 1.0, max_sequences * longest));
}

}  // namespace outrider
