// Reads the weights of a Hugging Face model directory: model.safetensors, or the files that
// model.safetensors.index.json names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace outrider {

enum class ElementType : uint8_t { kFloat32, kBFloat16, kFloat16 };

// A tensor inside a mapped file, row-major and little-endian, aligned to its element size.
struct TensorView {
  ElementType type = ElementType::kFloat32;
  std::vector<int64_t> shape;
  const char* data = nullptr;

  size_t element_bytes() const { return type == ElementType::kFloat32 ? 4 : 2; }
};

// Keeps the files mapped, read-only, for as long as it lives; nothing is copied. Tensors of types other than
// those above are known by name but cannot be had. Immutable once open: safe to read from any thread.
class SafeTensors {
 public:
  // NOT_FOUND for a missing file; DATA_LOSS, naming the file and where possible the tensor, for one that is
  // truncated or whose header is not what the format demands (length, JSON, shapes that match their bytes,
  // offsets in bounds, ascending from 0 without gap or overlap), or an index that disagrees with its files.
  static absl::StatusOr<SafeTensors> Open(const std::string& model_dir);

  SafeTensors() = default;
  ~SafeTensors();
  SafeTensors(SafeTensors&& other) noexcept;
  SafeTensors& operator=(SafeTensors&& other) noexcept;

  bool Has(absl::string_view name) const { return tensors_.contains(name); }
  // INVALID_ARGUMENT, naming file and tensor, if it is not there, has another shape or a type that cannot be
  // read.
  absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const;
  // The same for many in a row: an error goes into `status`, and if one is there already nothing is done.
  TensorView Get(absl::string_view name, absl::Span<const int64_t> shape, absl::Status& status) const;

 private:
  struct Mapping {
    std::string path;
    char* data;
    size_t bytes;
  };
  struct Entry {
    size_t file;
    std::string type;
    std::vector<int64_t> shape;
    const char* data;
  };

  absl::Status AddFile(const std::string& path);
  absl::Status AddHeader(size_t file);

  std::string dir_;
  std::vector<Mapping> files_;
  absl::flat_hash_map<std::string, Entry> tensors_;
};

}  // namespace outrider
