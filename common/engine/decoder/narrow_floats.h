// The 16-bit and 8-bit formats in which weights, operands and the KV cache are stored, as bit patterns. Host
// and device convert with the same source.
#pragma once

#include <cstdint>

#include "common/spec/team/exact_math.h"
#include "common/spec/types.h"

namespace outrider {

OUTRIDER_HD inline float FromBFloat16(uint16_t value) {
  return team::FloatOf(static_cast<uint32_t>(value) << 16);
}

// Rounds to nearest even. Overflow becomes infinity, any NaN 0x7fff.
OUTRIDER_HD inline uint16_t ToBFloat16(float value) {
  const uint32_t bits = team::BitsOf(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// The format is E4M3, which has no infinity: Micikevicius et al., "FP8 Formats for Deep Learning", table 1.
OUTRIDER_HD inline float FromFloat8(uint8_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x80) << 24;
  const uint32_t rest = static_cast<uint32_t>(value & 0x7f) << 20;
  // The exponents' biases differ by 120. Scaling by a power of two is right for subnormals too.
  const float magnitude =
      (value & 0x7f) == 0x7f ? team::FloatOf(0x7fc00000u) : team::FloatOf(rest) * 0x1p120f;
  return team::FloatOf(team::BitsOf(magnitude) | sign);
}

inline constexpr float kLargestFloat8 = 448;

// Rounds to nearest even. Overflow, infinity too, becomes the largest number; any NaN 0x7f.
OUTRIDER_HD inline uint8_t ToFloat8(float value) {
  constexpr uint32_t kLargest = 0x43e00000;   // 448
  constexpr uint32_t kSmallest = 0x3c800000;  // 2^-6, the smallest that is not subnormal
  constexpr uint32_t kShift = 0x46800000;     // 2^14, whose last bit is worth a subnormal's: 2^-9
  const uint32_t bits = team::BitsOf(value);
  const uint32_t sign = bits >> 24 & 0x80;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7f;
  uint32_t rounded = 0x7e;
  if (magnitude < kSmallest) {
    rounded = team::BitsOf(team::FloatOf(magnitude) + team::FloatOf(kShift)) - kShift;
  } else if (magnitude < kLargest) {
    rounded = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
  }
  return static_cast<uint8_t>(sign | rounded);
}

}  // namespace outrider
