// The element type of a product's operands.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider::cuda {

// bfloat16, or fp8 (e4m3) with a scale for each row of either operand.
enum class Operand : uint8_t { kBFloat16, kFp8 };

inline constexpr size_t OperandBytes(Operand operand) { return operand == Operand::kFp8 ? 1 : 2; }

}  // namespace outrider::cuda
