// Where a model's weights come from, and how they become float32.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/engine/decoder/blocks.h"
#include "common/engine/decoder/narrow_floats.h"

namespace outrider {

enum class ElementType : uint8_t { kFloat32, kBFloat16, kFloat16 };

// A stored tensor: row-major, little-endian, aligned to its element size.
struct TensorView {
  ElementType type = ElementType::kFloat32;
  std::vector<int64_t> shape;
  const char* data = nullptr;
  std::shared_ptr<const void> memory = nullptr;  // holds `data`; null if the source does

  size_t element_bytes() const { return type == ElementType::kFloat32 ? 4 : 2; }
  size_t elements() const {
    size_t elements = 1;
    for (const int64_t size : shape) elements *= static_cast<size_t>(size);
    return elements;
  }
  size_t bytes() const { return elements() * element_bytes(); }
};

inline float FromFloat16(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000) << 16;
  const uint32_t rest = static_cast<uint32_t>(value & 0x7fff) << 13;
  // The exponent's bias differs by 112; scaling by a power of two is right for subnormals too.
  const uint32_t infinity_or_nan = (value & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
  const float magnitude = infinity_or_nan != 0 ? std::bit_cast<float>(infinity_or_nan | (rest & 0x007fffff))
                                               : std::bit_cast<float>(rest) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

// Rounds to nearest even, and to infinity beyond the format's range. The value must not be NaN.
inline uint16_t ToFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rest = std::bit_cast<uint32_t>(std::bit_cast<float>(bits & 0x7fffffff) * 0x1p-112f);
  const uint32_t rounded = (rest + 0xfff + (rest >> 13 & 1)) >> 13;
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | (rounded < 0x7c00 ? rounded : 0x7c00));
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

inline std::vector<float> AllElements(const TensorView& tensor) {
  std::vector<float> values(tensor.elements());
  ReadElements(tensor, 0, static_cast<int>(values.size()), values.data());
  return values;
}

// Tensors by name. Views are valid while the source lives. A source may make a tensor for its view alone, so
// keeping many views may keep many tensors in memory.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // INVALID_ARGUMENT, naming source and tensor, if it is missing, has another shape or an element type that
  // cannot be read.
  virtual absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const = 0;

  // Returns the errors of Get that concern the tensor's name, shape or type, without making the tensor.
  virtual absl::Status Check(absl::string_view name, absl::Span<const int64_t> shape) const {
    return Get(name, shape).status();
  }

  // The format of the matrix's blocks; nullopt if it is not stored in blocks, or is invalid.
  virtual std::optional<BlockFormat> BlocksOf(absl::string_view /*name*/,
                                              absl::Span<const int64_t> /*shape*/) const {
    return std::nullopt;
  }
  // Gives access to Get's matrix by blocks. BlocksOf must have a format for it. Errors are those of Get.
  virtual absl::StatusOr<BlockReader> GetBlocks(absl::string_view name,
                                                absl::Span<const int64_t> shape) const {
    return Get(name, shape).status();
  }

  // Get, for a caller that gets many tensors: stores an error in `status`, and does nothing if `status`
  // already has one.
  TensorView Get(absl::string_view name, absl::Span<const int64_t> shape, absl::Status& status) const {
    if (!status.ok()) return {};
    absl::StatusOr<TensorView> view = Get(name, shape);
    status = view.status();
    return view.ok() ? *std::move(view) : TensorView{};
  }
};

}  // namespace outrider
