// Parses config.json.
#include <fstream>

#include "bench/temporary_folder.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/decoder/model_config.h"
#include "tests/fuzz/target.h"

namespace outrider {

void FuzzTarget(std::string_view input) {
  static const TemporaryFolder folder;
  std::ofstream(folder.path() + "/config.json", std::ios::binary) << input;
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(folder.path());
  if (!config.ok()) return;
  for (const TokenId id : config->eos_token_ids) {
    Require(id >= 0 && id < config->decoder.vocab_size, "an id is in the vocabulary");
  }
  if (config->decoder.layers <= 64) TensorsOf(config->decoder);
  if (config->quantization) Require(!QuantizationInWords(*config->quantization).empty(), "it has a name");
}

}  // namespace outrider
