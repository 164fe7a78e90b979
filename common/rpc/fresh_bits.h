// Random bits for ids, and for seeds that the client does not choose.
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace outrider {

// 64 bits of system entropy, so that no two processes draw the same. Thread-safe.
inline uint64_t FreshBits() {
  std::random_device entropy;
  return (uint64_t{entropy()} << 32) | entropy();
}

// The id of a sequence: 16 random bytes. Thread-safe.
inline std::string NewSequenceId() {
  std::string id;
  for (const uint64_t word : {FreshBits(), FreshBits()}) {
    id.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  return id;
}

}  // namespace outrider
