// Reads the weights of a Hugging Face model directory: model.safetensors, or the files listed in
// model.safetensors.index.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/engine/decoder/tensor_source.h"

namespace outrider {

// Keeps the files mapped read-only while it lives; copies nothing. Tensors of other element types are listed
// but cannot be read. Immutable once open, and thread-safe.
class SafeTensors final : public TensorSource {
 public:
  // NOT_FOUND for a missing file; DATA_LOSS, naming the file and if possible the tensor, for a truncated
  // file, a header that violates the format (length, JSON, shapes that match their bytes, offsets in bounds,
  // ascending from 0 without gap or overlap), or an index that disagrees with its files.
  static absl::StatusOr<SafeTensors> Open(const std::string& model_dir);

  SafeTensors() = default;
  ~SafeTensors() override;
  SafeTensors(SafeTensors&& other) noexcept;
  SafeTensors& operator=(SafeTensors&& other) noexcept;

  bool Has(absl::string_view name) const { return tensors_.contains(name); }
  using TensorSource::Get;
  absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const override;

  // XXH3-64 of names, types, shapes and bytes of all tensors in the order of their names: the same for the
  // same weights, however they are spread over files. Reads everything.
  uint64_t Hash() const;

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
    absl::string_view data;
  };

  absl::Status AddFile(const std::string& path);
  absl::Status AddHeader(size_t file);

  std::string dir_;
  std::vector<Mapping> files_;
  absl::flat_hash_map<std::string, Entry> tensors_;
};

}  // namespace outrider
