// Ids of sequences.
#pragma once

#include <cstdint>
#include <string>

#include "common/rpc/fresh_bits.h"

namespace outrider {

// 16 random bytes. Thread-safe.
inline std::string NewSequenceId() {
  std::string id;
  for (const uint64_t word : {FreshBits(), FreshBits()}) {
    id.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  return id;
}

}  // namespace outrider
