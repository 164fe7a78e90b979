// A model on disk: its configuration and its weights.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/engine/decoder/gguf_model.h"
#include "common/engine/decoder/model_config.h"
#include "common/engine/decoder/safetensors.h"
#include "common/engine/decoder/unpacked_tensors.h"
#include "common/gguf/gguf_file.h"

namespace outrider {

// The configuration and the weights of a Hugging Face folder or of a GGUF file. Immutable, thread-safe.
class Checkpoint {
 public:
  // Errors are those of ReadModelConfig, SafeTensors::Open and GgufFile::Open.
  static absl::StatusOr<std::unique_ptr<const Checkpoint>> Open(const std::string& model);

  const ModelConfig& config() const { return config_; }
  // Get unpacks packed tensors.
  const TensorSource& weights() const { return *weights_; }
  // A hash of the stored tensors: SafeTensors::Hash or GgufFile::Hash.
  uint64_t Hash() const { return folder_ ? folder_->Hash() : file_->Hash(); }

 private:
  Checkpoint() = default;

  ModelConfig config_;
  std::optional<SafeTensors> folder_;
  std::optional<UnpackedTensors> unpacked_;  // of a folder whose weights are quantised
  std::optional<GgufFile> file_;
  std::optional<GgufTensors> tensors_;  // of a GGUF file
  const TensorSource* weights_ = nullptr;
};

}  // namespace outrider
