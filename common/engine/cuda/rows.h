// The rows of a step on the device: their places in the cache, and their types as operands of products.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider::cuda {

// The position of a row in its sequence, and its place in the KV cache.
struct RowPlace {
  int32_t position;
  int32_t block;
  int32_t slot;
};

// The type of a product's operands: bfloat16, or fp8 (e4m3) with a scale for each row of either operand.
enum class Operand : uint8_t { kBFloat16, kFp8 };

inline constexpr size_t OperandBytes(Operand operand) { return operand == Operand::kFp8 ? 1 : 2; }

// The rows of a product are padded to a multiple of this.
inline constexpr int kRowTile = 16;
inline constexpr int PaddedRows(int rows) { return (rows + kRowTile - 1) / kRowTile * kRowTile; }

}  // namespace outrider::cuda
