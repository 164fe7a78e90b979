// Reads the weights of a Hugging Face model directory: model.safetensors, or the files listed in
// model.safetensors.index.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/gguf/mapped_file.h"

namespace outrider {

// Keeps the files mapped read-only while it lives; copies only tensors that are not aligned there. Immutable
// once open, and thread-safe.
class SafeTensors final : public TensorSource {
 public:
  // A tensor of any element type. If the format knows the type, the data has the size of the shape and is
  // aligned.
  struct Stored {
    size_t file;
    std::string type;  // in the format's words: "F32", "I8"
    std::vector<int64_t> shape;
    absl::string_view data;
  };

  // NOT_FOUND for a missing file; DATA_LOSS, naming the file and if possible the tensor, for a truncated
  // file, a header that violates the format (length, JSON, shapes that match their bytes, offsets in bounds,
  // ascending from 0 without gap or overlap), or an index that disagrees with its files.
  static absl::StatusOr<SafeTensors> Open(const std::string& model_dir);

  // Null if there is none. Valid while the source lives. "model.x" also finds "x", the tensor's name in a
  // checkpoint of the model without its head.
  const Stored* Find(absl::string_view name) const;
  using TensorSource::Get;
  absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const override;
  // The data of a tensor of a type that TensorView lacks. Errors are those of Get.
  absl::StatusOr<absl::string_view> GetBytes(absl::string_view name, absl::string_view type,
                                             absl::Span<const int64_t> shape) const;
  // Returns INVALID_ARGUMENT, naming the file and the tensor.
  absl::Status Refuse(absl::string_view name, absl::string_view why) const;

  // HashTensors of all tensors. Reads everything.
  uint64_t Hash() const;

 private:
  absl::Status AddFile(const std::string& path);
  absl::Status AddHeader(size_t file);
  // The path of the file, or of the folder if it has several files.
  const std::string& Where() const { return files_.size() == 1 ? files_[0].path() : dir_; }
  // Errors are those of Get, except for the element type.
  absl::StatusOr<const Stored*> FindWithShape(absl::string_view name, absl::Span<const int64_t> shape) const;

  std::string dir_;
  std::vector<MappedFile> files_;
  std::deque<std::string> copies_;
  absl::flat_hash_map<std::string, Stored> tensors_;
};

}  // namespace outrider
