// Weights stored in blocks. The columns of a block share a scale and a minimum.
#pragma once

#include <cstdint>
#include <functional>

namespace outrider {

// How many columns a block has.
inline constexpr int kBlock = 32;

// A weight is scale * level + minimum.
struct Block {
  float scale = 0;
  float minimum = 0;
  int8_t levels[kBlock] = {};  // 0 to 15 with 4 bits, signed with 8 bits
};

struct BlockFormat {
  int bits = 0;       // of a level: 4 or 8
  bool wide = false;  // scale and minimum are float32; else they are exact in float16
};

// Reads one block of a matrix whose rows are whole blocks. Thread-safe. The matrix's source must outlive it.
using BlockReader = std::function<void(int64_t row, int64_t block, Block& to)>;

}  // namespace outrider
