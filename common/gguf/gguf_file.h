// Reads GGUF files, the format of llama.cpp: a model's metadata and tensors in one file or in several shards
// (gguf.md of https://github.com/ggml-org/ggml).
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/gguf/mapped_file.h"

struct gguf_context;

namespace outrider {

// ggml's reader parses the file. This class checks what ggml takes on trust: the counts before it parses, and
// then that every tensor has a size and lies in its file. Immutable once open, and thread-safe. The files
// stay mapped.
class GgufFile {
 public:
  // metadata() leaves out longer arrays.
  static constexpr size_t kMaxMetadataArray = 4096;

  // The ggml_type of the formats that are read without unpacking.
  static constexpr int kFloat32 = 0, kFloat16 = 1, kBFloat16 = 30;

  struct Tensor {
    int type;                    // a valid ggml_type
    std::vector<int64_t> shape;  // as in Hugging Face's files: the innermost dimension is the last
    absl::string_view data;      // its size follows from type and shape
    size_t file;                 // index of the shard
  };

  // Opens the file, and the other shards too if it is the first of several. LAYERS.gguf+FILE.gguf opens both:
  // the keys and tensors of the first replace those of the second, whose own layers are left out. NOT_FOUND
  // for a missing file; INVALID_ARGUMENT, in one line that names the file and if possible the key or tensor,
  // for a damaged one.
  static absl::StatusOr<GgufFile> Open(const std::string& path);

  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  ~GgufFile();

  // The path of the first file; of FILE.gguf if layers replace its own.
  const std::string& path() const { return shards_[0].path(); }
  // All keys and values except long arrays, as an object without nesting, for FieldReader.
  const nlohmann::json& metadata() const { return metadata_; }
  // The value of a key, even a long array; null if there is no such key.
  nlohmann::json Value(absl::string_view key) const;

  // The index of `text` in an array of strings; -1 if it is not there, or if the key has no such array.
  int64_t FindString(absl::string_view key, absl::string_view text) const;

  // A type's name: "q4_K".
  static std::string TypeName(int type);
  // Whether the type stores numbers in blocks that share scales.
  static bool IsPacked(int type);
  // Whether ToFloat can read the type. It cannot read integers.
  static bool CanBeFloat(int type);
  // Writes `count` numbers of a tensor's data as float32. `data` begins at a block, and `count` is a multiple
  // of the type's block.
  static void ToFloat(int type, const char* data, int64_t count, float* to);

  // The tensor, or null if there is none. Valid while the file lives.
  const Tensor* Find(absl::string_view name) const;
  const absl::flat_hash_map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::string& PathOf(const Tensor& tensor) const { return shards_[tensor.file].path(); }

  // HashTensors of all tensors. Reads everything.
  uint64_t Hash() const;

 private:
  struct Free {
    void operator()(gguf_context* context) const;
  };

  GgufFile();
  absl::Status AddShard(const std::string& path);
  absl::Status AddTensors(const gguf_context& context);
  void ReplaceLayers(GgufFile layers);

  std::vector<MappedFile> shards_;
  std::unique_ptr<gguf_context, Free> first_;  // the metadata of the first shard
  nlohmann::json metadata_;
  absl::flat_hash_map<std::string, Tensor> tensors_;
};

}  // namespace outrider
