// Converts stored weights to float32.
#pragma once

#include <bit>
#include <cstdint>

#include "common/engine/decoder/narrow_floats.h"
#include "common/engine/decoder/tensor_source.h"

namespace outrider {

inline float FromFloat16(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000) << 16;
  const uint32_t rest = static_cast<uint32_t>(value & 0x7fff) << 13;
  // The exponent's bias differs by 112; scaling by a power of two is right for subnormals too.
  const uint32_t infinity_or_nan = (value & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
  const float magnitude = infinity_or_nan != 0 ? std::bit_cast<float>(infinity_or_nan | (rest & 0x007fffff))
                                               : std::bit_cast<float>(rest) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

// Element `index` of a tensor's data, as float32.
template <ElementType kType>
float ReadElement(const char* data, int64_t index) {
  if constexpr (kType == ElementType::kFloat32) {
    return reinterpret_cast<const float*>(data)[index];
  } else {
    const uint16_t value = reinterpret_cast<const uint16_t*>(data)[index];
    return kType == ElementType::kBFloat16 ? FromBFloat16(value) : FromFloat16(value);
  }
}

// Reads elements [first, first + count) of a tensor as float32.
inline void ReadElements(const TensorView& tensor, int64_t first, int count, float* to) {
  const auto read = [&]<ElementType kType>() {
    for (int i = 0; i < count; ++i) to[i] = ReadElement<kType>(tensor.data, first + i);
  };
  switch (tensor.type) {
    case ElementType::kFloat32:
      return read.template operator()<ElementType::kFloat32>();
    case ElementType::kBFloat16:
      return read.template operator()<ElementType::kBFloat16>();
    case ElementType::kFloat16:
      return read.template operator()<ElementType::kFloat16>();
  }
}

}  // namespace outrider
