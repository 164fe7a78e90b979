#include "common/engine/decoder/checkpoint.h"

#include <utility>

#include "common/gguf/model_path.h"
#include "common/spec/status.h"

namespace outrider {

absl::StatusOr<std::unique_ptr<const Checkpoint>> Checkpoint::Open(const std::string& model) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint);
  if (IsGguf(model)) {
    checkpoint->file_ = OUTRIDER_TRY(GgufFile::Open(model));
    checkpoint->config_ = OUTRIDER_TRY(ReadGgufConfig(*checkpoint->file_));
    checkpoint->weights_ = &checkpoint->tensors_.emplace(*checkpoint->file_, checkpoint->config_.decoder);
    return checkpoint;
  }
  checkpoint->config_ = OUTRIDER_TRY(ReadModelConfig(model));
  checkpoint->folder_ = OUTRIDER_TRY(SafeTensors::Open(model));
  checkpoint->weights_ = &*checkpoint->folder_;
  if (const std::optional<Quantization>& quantization = checkpoint->config_.quantization) {
    checkpoint->weights_ = &checkpoint->unpacked_.emplace(*checkpoint->folder_, *quantization);
  }
  return checkpoint;
}

}  // namespace outrider
