// Helpers for tests of a server's sequences: a small pool of blocks, and ids.
#pragma once

#include <cstdint>

#include "common/kv/lease_table.h"

namespace outrider::testing {

inline constexpr int kStoreBlockSize = 4;
inline constexpr int kStoreBlocks = 8;

inline SequenceId Id(uint64_t n) { return {n, ~n}; }

}  // namespace outrider::testing
