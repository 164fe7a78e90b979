// The layout of weights in blocks within a panel (LinearArgs).
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/engine/cpu/kernels.h"
#include "common/engine/decoder/blocks.h"
#include "common/engine/decoder/tensor_source.h"

namespace outrider {

static_assert(kBlock == kBlockColumns);

// The block format of a storage; 0 bits if the storage is not in blocks.
inline BlockFormat BlockFormatOf(Storage storage) {
  switch (storage) {
    case Storage::kBlocks4:
      return {4, false};
    case Storage::kWideBlocks4:
      return {4, true};
    case Storage::kBlocks8:
      return {8, false};
    case Storage::kWideBlocks8:
      return {8, true};
    default:
      return {};
  }
}

inline Storage StorageOf(BlockFormat blocks) {
  if (blocks.bits == 4) return blocks.wide ? Storage::kWideBlocks4 : Storage::kBlocks4;
  return blocks.wide ? Storage::kWideBlocks8 : Storage::kBlocks8;
}

// The bytes that one block of each of a panel's columns takes.
inline size_t BytesOf(BlockFormat blocks) {
  return static_cast<size_t>(kPanel * (kBlockColumns * blocks.bits / 8 + (blocks.wide ? 8 : 4)));
}

// One block of each of a panel's columns. Does not own its memory.
class PackedBlock {
 public:
  PackedBlock(char* data, BlockFormat format) : data_(data), format_(format) {}

  // Writes the block of one column. The memory must have been all zeros.
  void Set(int column, const Block& block) {
    SetScale(column, block.scale);
    SetScale(kPanel + column, block.minimum);
    for (int k = 0; k < kBlockColumns; ++k) {
      if (format_.bits == 8) {
        levels()[ByteOf(column, k)] = block.levels[k];
      } else {
        Word(column, k) |= static_cast<uint16_t>(block.levels[k] << ShiftOf(k));
      }
    }
  }

  void Read(int column, float* to) {
    const float scale = Scale(column), minimum = Scale(kPanel + column);
    for (int k = 0; k < kBlockColumns; ++k) {
      const int level = format_.bits == 8 ? levels()[ByteOf(column, k)] : Word(column, k) >> ShiftOf(k) & 15;
      to[k] = scale * static_cast<float>(level) + minimum;
    }
  }

 private:
  static int ByteOf(int column, int k) { return (k / 2 * kPanel + column) * 2 + k % 2; }
  static int ShiftOf(int k) { return k % 8 / 2 * 4; }
  uint16_t& Word(int column, int k) {
    return reinterpret_cast<uint16_t*>(levels())[(k / 8 * kPanel + column) * 2 + k % 2];
  }
  int8_t* levels() { return reinterpret_cast<int8_t*>(data_ + 2 * kPanel * (format_.wide ? 4 : 2)); }
  float Scale(int index) const {
    return format_.wide ? reinterpret_cast<const float*>(data_)[index]
                        : FromFloat16(reinterpret_cast<const uint16_t*>(data_)[index]);
  }
  void SetScale(int index, float value) {
    if (format_.wide) {
      reinterpret_cast<float*>(data_)[index] = value;
    } else {
      reinterpret_cast<uint16_t*>(data_)[index] = ToFloat16(value);
    }
  }

  char* const data_;
  const BlockFormat format_;
};

}  // namespace outrider
