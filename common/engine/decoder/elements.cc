#include "common/engine/decoder/elements.h"

namespace outrider {
namespace {

template <ElementType kType>
void ReadRange(const char* data, int64_t first, int count, float* to) {
  for (int i = 0; i < count; ++i) to[i] = ReadElement<kType>(data, first + i);
}

}  // namespace

void ReadElements(const TensorView& tensor, int64_t first, int count, float* to) {
  switch (tensor.type) {
    case ElementType::kFloat32:
      return ReadRange<ElementType::kFloat32>(tensor.data, first, count, to);
    case ElementType::kBFloat16:
      return ReadRange<ElementType::kBFloat16>(tensor.data, first, count, to);
    case ElementType::kFloat16:
      return ReadRange<ElementType::kFloat16>(tensor.data, first, count, to);
  }
}

}  // namespace outrider
