// A model in a GGUF file: its configuration, and its weights under the names of Hugging Face's files.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/engine/decoder/model_config.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/gguf/gguf_file.h"

namespace outrider {

// Reads the metadata of an architecture that DecoderConfig can express: llama (Mistral's models too), qwen2,
// qwen3, gemma2 and gemma3. The end-of-sequence ids are those in tokenizer.ggml.{eos,eot,eom}_token_id and
// those of control tokens named for the end of a turn or a text, as in llama.cpp.
//
// INVALID_ARGUMENT, naming the file and the key, in the cases of ReadModelConfig.
absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file);

// Unpacks tensors of packed types to float32 on request. Others are views of the file, or copies if the file
// has them unaligned or in another order of rows. A view owns its unpacked or copied memory. Thread-safe.
class GgufTensors final : public TensorSource {
 public:
  // `file` must outlive it.
  GgufTensors(const GgufFile& file, const DecoderConfig& spec);

  using TensorSource::Get;
  absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const override;
  absl::Status Check(absl::string_view name, absl::Span<const int64_t> shape) const override;
  std::optional<BlockFormat> BlocksOf(absl::string_view name, absl::Span<const int64_t> shape) const override;
  absl::StatusOr<BlockReader> GetBlocks(absl::string_view name,
                                        absl::Span<const int64_t> shape) const override;
  // Whether BlocksOf has a format for matrices of this type.
  static bool HasBlocks(int type);

 private:
  // Maps a row of the tensor to its row in the file. Null: the rows are in the same order.
  std::function<int64_t(int64_t row)> RowOrder(absl::string_view name) const;
  absl::StatusOr<const GgufFile::Tensor*> Find(absl::string_view name, absl::Span<const int64_t> shape) const;

  const GgufFile& file_;
  const int head_dim_;
  // For llama, llama.cpp rotates neighbouring numbers as pairs; its converter reorders queries and keys.
  const bool rotates_neighbours_;
  const bool output_norms_;
};

}  // namespace outrider
