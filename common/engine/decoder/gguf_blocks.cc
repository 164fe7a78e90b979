// Reads ggml's formats with blocks of 32 numbers that share a scale and a minimum. ggml-common.h has their
// layouts.
#include <cstring>

#include "common/engine/decoder/gguf_model.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

using Bytes = const uint8_t*;

float HalfAt(Bytes data) {
  uint16_t half;
  std::memcpy(&half, data, sizeof(half));
  return FromFloat16(half);
}

// Reads levels 0 to 15 from the lower halves of 16 bytes, and levels 16 to 31 from the upper halves.
void ReadNibbles(Bytes data, Block& to) {
  for (int i = 0; i < 16; ++i) {
    to.levels[i] = static_cast<int8_t>(data[i] & 15);
    to.levels[i + 16] = static_cast<int8_t>(data[i] >> 4);
  }
}

// Adds a fifth bit to each level, from the 32 bits at `data`, and then subtracts `less` from each.
void AddFifthBits(Bytes data, int less, Block& to) {
  for (int i = 0; i < kBlock; ++i) {
    to.levels[i] = static_cast<int8_t>(to.levels[i] + (data[i / 8] >> i % 8 & 1) * 16 - less);
  }
}

void ReadQ4_0(Bytes data, int64_t /*block*/, Block& to) {
  to.scale = HalfAt(data);
  to.minimum = -8 * to.scale;
  ReadNibbles(data + 2, to);
}

void ReadQ4_1(Bytes data, int64_t /*block*/, Block& to) {
  to.scale = HalfAt(data);
  to.minimum = HalfAt(data + 2);
  ReadNibbles(data + 4, to);
}

void ReadQ5_0(Bytes data, int64_t /*block*/, Block& to) {
  to.scale = HalfAt(data);
  to.minimum = 0;
  ReadNibbles(data + 6, to);
  AddFifthBits(data + 2, 16, to);
}

void ReadQ5_1(Bytes data, int64_t /*block*/, Block& to) {
  to.scale = HalfAt(data);
  to.minimum = HalfAt(data + 2);
  ReadNibbles(data + 8, to);
  AddFifthBits(data + 4, 0, to);
}

void ReadQ8_0(Bytes data, int64_t /*block*/, Block& to) {
  to.scale = HalfAt(data);
  to.minimum = 0;
  std::memcpy(to.levels, data + 2, kBlock);
}

// Reads an eighth of a block of 256. The block has eight 6-bit scales and minimums, and a scale for each
// kind. Two neighbouring eighths have their levels in the two halves of the same bytes.
void ReadEighth(Bytes data, Bytes levels, int64_t block, Block& to) {
  const int64_t eighth = block % 8;
  const Bytes packed = data + 4;
  int scale, minimum;
  if (eighth < 4) {
    scale = packed[eighth] & 63;
    minimum = packed[eighth + 4] & 63;
  } else {
    scale = (packed[eighth + 4] & 15) | (packed[eighth - 4] >> 6 << 4);
    minimum = packed[eighth + 4] >> 4 | (packed[eighth] >> 6 << 4);
  }
  to.scale = HalfAt(data) * static_cast<float>(scale);
  to.minimum = -HalfAt(data + 2) * static_cast<float>(minimum);
  const Bytes from = levels + eighth / 2 * kBlock;
  for (int i = 0; i < kBlock; ++i) to.levels[i] = static_cast<int8_t>(from[i] >> eighth % 2 * 4 & 15);
}

void ReadQ4_K(Bytes data, int64_t block, Block& to) { ReadEighth(data, data + 16, block, to); }

void ReadQ5_K(Bytes data, int64_t block, Block& to) {
  ReadEighth(data, data + 48, block, to);
  for (int i = 0; i < kBlock; ++i) {
    to.levels[i] = static_cast<int8_t>(to.levels[i] + (data[16 + i] >> block % 8 & 1) * 16);
  }
}

struct Format {
  const char* name;
  int bits;
  bool wide;
  size_t unit_bytes;    // of a unit of one or more blocks
  int64_t unit_blocks;  // in a unit
  void (*read)(Bytes data, int64_t block, Block& to);
};

constexpr Format kFormats[] = {{"q4_0", 4, false, 18, 1, ReadQ4_0}, {"q4_1", 4, false, 20, 1, ReadQ4_1},
                               {"q5_0", 8, false, 22, 1, ReadQ5_0}, {"q5_1", 8, false, 24, 1, ReadQ5_1},
                               {"q8_0", 8, false, 34, 1, ReadQ8_0}, {"q4_K", 4, true, 144, 8, ReadQ4_K},
                               {"q5_K", 8, true, 176, 8, ReadQ5_K}};

const Format* FormatOf(int type) {
  const std::string name = GgufFile::TypeName(type);
  for (const Format& format : kFormats) {
    if (name == format.name) return &format;
  }
  return nullptr;
}

}  // namespace

bool GgufTensors::HasBlocks(int type) { return FormatOf(type) != nullptr; }

std::optional<BlockFormat> GgufTensors::BlocksOf(absl::string_view name,
                                                 absl::Span<const int64_t> shape) const {
  const auto tensor = Find(name, shape);
  if (!tensor.ok() || shape.size() != 2) return std::nullopt;
  const Format* const format = FormatOf((*tensor)->type);
  return format == nullptr ? std::nullopt : std::optional(BlockFormat{format->bits, format->wide});
}

absl::StatusOr<BlockReader> GgufTensors::GetBlocks(absl::string_view name,
                                                   absl::Span<const int64_t> shape) const {
  const GgufFile::Tensor& tensor = *OUTRIDER_TRY(Find(name, shape));
  const Format* const format = FormatOf(tensor.type);
  const auto* const data = reinterpret_cast<Bytes>(tensor.data.data());
  const size_t row_bytes = tensor.data.size() / static_cast<size_t>(shape[0]);
  const auto row_in_file = RowOrder(name);
  return [=](int64_t row, int64_t block, Block& to) {
    const Bytes from = data + static_cast<size_t>(row_in_file ? row_in_file(row) : row) * row_bytes +
                       static_cast<size_t>(block / format->unit_blocks) * format->unit_bytes;
    format->read(from, block, to);
  };
}

}  // namespace outrider
