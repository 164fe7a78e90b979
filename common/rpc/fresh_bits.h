// Ids and seeds that nobody chose.
#pragma once

#include <cstdint>
#include <random>

namespace outrider {

// From the system's entropy, so that no two processes agree. Any thread.
inline uint64_t FreshBits() {
  std::random_device entropy;
  return (uint64_t{entropy()} << 32) | entropy();
}

}  // namespace outrider
