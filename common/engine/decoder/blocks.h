// Weights in blocks: numbers of a row that share a scale and a minimum.
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
  int8_t levels[kBlock] = {};  // of 4 bits: 0 to 15
};

struct BlockFormat {
  int bits = 0;       // of a level: 4 or 8
  bool wide = false;  // scale and minimum are float32; else they are exact in float16
};

// Reads a block of a matrix whose rows are whole blocks. Any thread, while the source of the matrix lives.
using BlockReader = std::function<void(int64_t row, int64_t block, Block& to)>;

}  // namespace outrider
