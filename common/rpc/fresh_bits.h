// Random bits for ids, and for seeds that the client does not choose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

namespace outrider {

// 64 bits of system entropy, so that no two processes draw the same. Thread-safe.
inline uint64_t FreshBits() {
  std::random_device entropy;
  return (uint64_t{entropy()} << 32) | entropy();
}

// `count` random bytes; `count` must be a multiple of 8. Thread-safe.
inline std::string FreshBytes(size_t count) {
  std::string bytes;
  while (bytes.size() < count) {
    const uint64_t word = FreshBits();
    bytes.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  return bytes;
}

// The id of a sequence: 16 random bytes. Thread-safe.
inline std::string NewSequenceId() { return FreshBytes(16); }

}  // namespace outrider
