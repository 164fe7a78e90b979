// A model out of a GGUF file: its configuration, and its weights under the names of Hugging Face's files.
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
// qwen3, gemma2 and gemma3. A text ends with the tokens of the keys tokenizer.ggml.{eos,eot,eom}_token_id and
// with the control tokens that by their names end a turn or a text, as in llama.cpp.
//
// INVALID_ARGUMENT, naming the file and the key, as ReadModelConfig.
absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file);

// Unpacks a tensor of a packed type to float32 when it is requested; the memory then belongs to the view.
// Others are returned as they lie in the file, where they are aligned. Thread-safe.
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
  // Whether matrices of this type lie in blocks.
  static bool HasBlocks(int type);

 private:
  // The row of the file that has a row of the tensor.
  std::function<int64_t(int64_t row)> RowOrder(absl::string_view name) const;
  absl::StatusOr<const GgufFile::Tensor*> Find(absl::string_view name, absl::Span<const int64_t> shape) const;

  const GgufFile& file_;
  const int head_dim_;
  // llama.cpp turns neighbouring numbers of a head as pairs there; its converter reorders queries and keys.
  const bool rotates_neighbours_;
  const bool output_norms_;
};

}  // namespace outrider
