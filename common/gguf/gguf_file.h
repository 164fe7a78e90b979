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

// ggml's reader parses the file. What it believes is checked here before and after: counts, types of values,
// shapes, and that every tensor lies in its file. Immutable once open, and thread-safe. The files stay
// mapped.
class GgufFile {
 public:
  // Arrays with more elements are not part of the metadata.
  static constexpr size_t kMaxMetadataArray = 4096;

  // Types whose numbers are read as they lie, as ggml numbers them.
  static constexpr int kFloat32 = 0, kFloat16 = 1, kBFloat16 = 30;

  struct Tensor {
    int type;                    // a ggml_type, which ggml knows
    std::vector<int64_t> shape;  // as in Hugging Face's files: the innermost dimension is the last
    absl::string_view data;      // of the size that type and shape say
    size_t file;                 // the shard
  };

  // Opens the file, and where it is the first of several shards the others too. NOT_FOUND for a missing file;
  // INVALID_ARGUMENT, in one line that names the file and if possible the key or tensor, for a damaged one.
  static absl::StatusOr<GgufFile> Open(const std::string& path);

  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  ~GgufFile();

  // The first file's.
  const std::string& path() const { return shards_[0].path(); }
  // All keys with their values, but for long arrays: an object without nesting, for FieldReader.
  const nlohmann::json& metadata() const { return metadata_; }
  // The value of a key, of which an array may be long; null if there is none.
  nlohmann::json Value(absl::string_view key) const;

  // The place of a text in an array of strings; -1 if it is not there, or the key is none of such an array.
  int64_t FindString(absl::string_view key, absl::string_view text) const;

  // A type's name: "q4_K".
  static std::string TypeName(int type);
  // Whether its numbers lie in blocks that share scales.
  static bool IsPacked(int type);
  // Whether ToFloat can read it. Whole numbers it cannot.
  static bool CanBeFloat(int type);
  // Writes `count` numbers of a tensor's data as float32. `data` begins at a block, and `count` is a multiple
  // of the type's block.
  static void ToFloat(int type, const char* data, int64_t count, float* to);

  // Null if there is none. Valid while the file lives.
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

  std::vector<MappedFile> shards_;
  std::unique_ptr<gguf_context, Free> first_;  // what the first shard says
  nlohmann::json metadata_;
  absl::flat_hash_map<std::string, Tensor> tensors_;
};

}  // namespace outrider
