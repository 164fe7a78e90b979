// Where a model's weights come from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace outrider {

enum class ElementType : uint8_t { kFloat32, kBFloat16, kFloat16 };

// A stored tensor: row-major, little-endian, aligned to its element size.
struct TensorView {
  ElementType type = ElementType::kFloat32;
  std::vector<int64_t> shape;
  const char* data = nullptr;
  std::shared_ptr<const void> memory = nullptr;  // holds `data`; null if the source does

  size_t element_bytes() const { return type == ElementType::kFloat32 ? 4 : 2; }
  size_t bytes() const {
    size_t bytes = element_bytes();
    for (const int64_t size : shape) bytes *= static_cast<size_t>(size);
    return bytes;
  }
};

// Tensors by name. Views are valid while the source lives. A source may make a tensor for its view alone, so
// keeping many views may keep many tensors in memory.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // INVALID_ARGUMENT, naming source and tensor, if it is missing, has another shape or an element type that
  // cannot be read.
  virtual absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const = 0;

  // Checks for such a tensor without making it: returns what Get would find wrong with its shape and type.
  virtual absl::Status Check(absl::string_view name, absl::Span<const int64_t> shape) const {
    return Get(name, shape).status();
  }

  // Get for many tensors in a row: stores an error in `status`, and does nothing if there is one
  // already.
  TensorView Get(absl::string_view name, absl::Span<const int64_t> shape, absl::Status& status) const {
    if (!status.ok()) return {};
    absl::StatusOr<TensorView> view = Get(name, shape);
    status = view.status();
    return view.ok() ? *std::move(view) : TensorView{};
  }
};

}  // namespace outrider
