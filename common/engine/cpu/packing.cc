#include "common/engine/cpu/packing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/engine/decoder/elements.h"

namespace outrider {
namespace {

uint16_t ToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);  // a quiet NaN
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Scales each column so that its largest magnitude becomes 127.
template <ElementType kType>
void PackInt8Panel(const char* const* rows, int k, char* to) {
  auto* scales = reinterpret_cast<float*>(to);
  auto* bytes = reinterpret_cast<int8_t*>(to + kScaleBytes);
  for (int column = 0; column < kPanel; ++column) {
    float largest = 0;
    for (int i = 0; rows[column] != nullptr && i < k; ++i) {
      largest = std::max(largest, std::abs(ReadElement<kType>(rows[column], i)));
    }
    scales[column] = largest / 127;
    const float inverse = largest > 0 ? 127 / largest : 0;
    for (int i = 0; i < k; ++i) {
      const float value = rows[column] == nullptr ? 0.0f : ReadElement<kType>(rows[column], i) * inverse;
      bytes[((i / 2) * kPanel + column) * 2 + i % 2] = static_cast<int8_t>(std::lrint(value));
    }
  }
}

// `rows` points to the elements of 32 rows; null for padding.
template <ElementType kType>
void PackPanel(const char* const* rows, int k, Storage storage, char* to) {
  if (storage == Storage::kInt8) return PackInt8Panel<kType>(rows, k, to);
  for (int i = 0; i < k; ++i) {
    for (int column = 0; column < kPanel; ++column) {
      const float value = rows[column] == nullptr ? 0.0f : ReadElement<kType>(rows[column], i);
      if (storage == Storage::kFloat32) {
        reinterpret_cast<float*>(to)[i * kPanel + column] = value;
      } else {
        reinterpret_cast<uint16_t*>(to)[((i / 2) * kPanel + column) * 2 + i % 2] = ToBFloat16(value);
      }
    }
  }
}

}  // namespace

MatrixSource Concatenated(std::vector<TensorView> tensors) {
  MatrixSource source;
  source.k = static_cast<int>(tensors[0].shape[1]);
  for (int t = 0; t < static_cast<int>(tensors.size()); ++t) {
    const int rows = static_cast<int>(tensors[static_cast<size_t>(t)].shape[0]);
    for (int row = 0; row < rows; ++row) source.rows.push_back({t, row});
  }
  source.tensors = std::move(tensors);
  return source;
}

MatrixSource InterleavedPanels(TensorView first, TensorView second) {
  MatrixSource source;
  source.k = static_cast<int>(first.shape[1]);
  const int n = static_cast<int>(first.shape[0]);
  for (int panel = 0; panel < n; panel += kPanel) {
    for (int tensor = 0; tensor < 2; ++tensor) {
      for (int row = panel; row < panel + kPanel; ++row) {
        source.rows.push_back({tensor, row < n ? row : MatrixSource::kPaddingRow});
      }
    }
  }
  source.tensors = {std::move(first), std::move(second)};
  return source;
}

size_t PackedBytes(int n, int k, Storage storage) {
  const size_t panels = static_cast<size_t>((n + kPanel - 1) / kPanel);
  const size_t weights = static_cast<size_t>(kPanel) * static_cast<size_t>(k);
  switch (storage) {
    case Storage::kFloat32:
      return panels * weights * 4;
    case Storage::kBFloat16:
      return panels * weights * 2;
    case Storage::kInt8:
      return panels * (kScaleBytes + weights);
  }
  return 0;
}

void Pack(const MatrixSource& source, Storage storage, ThreadPool& pool, char* to) {
  const int panels = (source.n() + kPanel - 1) / kPanel;
  const size_t panel_bytes = PackedBytes(kPanel, source.k, storage);
  pool.Run(panels, [&](int panel, int) {
    const char* rows[kPanel] = {};
    for (int column = 0; column < kPanel && panel * kPanel + column < source.n(); ++column) {
      const MatrixSource::Row row =
          source.rows[static_cast<size_t>(panel) * kPanel + static_cast<size_t>(column)];
      if (row.row == MatrixSource::kPaddingRow) continue;
      const TensorView& tensor = source.tensors[static_cast<size_t>(row.tensor)];
      rows[column] =
          tensor.data + static_cast<size_t>(row.row) * static_cast<size_t>(source.k) * tensor.element_bytes();
    }
    char* panel_to = to + static_cast<size_t>(panel) * panel_bytes;
    switch (source.tensors[0].type) {
      case ElementType::kFloat32:
        return PackPanel<ElementType::kFloat32>(rows, source.k, storage, panel_to);
      case ElementType::kBFloat16:
        return PackPanel<ElementType::kBFloat16>(rows, source.k, storage, panel_to);
      case ElementType::kFloat16:
        return PackPanel<ElementType::kFloat16>(rows, source.k, storage, panel_to);
    }
  });
}

}  // namespace outrider
