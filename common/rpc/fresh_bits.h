// Random bits for ids, and for seeds that the client does not choose.
#pragma once

#include <cstdint>
#include <random>

namespace outrider {

// 64 bits of system entropy, so that no two processes draw the same. Thread-safe.
inline uint64_t FreshBits() {
  std::random_device entropy;
  return (uint64_t{entropy()} << 32) | entropy();
}

}  // namespace outrider
