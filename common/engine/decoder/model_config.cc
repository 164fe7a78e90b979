#include "common/engine/decoder/model_config.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/engine/decoder/field_reader.h"
#include "common/engine/decoder/gemma.h"
#include "common/engine/decoder/llama.h"
#include "common/engine/decoder/mistral.h"
#include "common/engine/decoder/qwen.h"

namespace outrider {
namespace {

struct Family {
  const char* model_type;
  DecoderSpec (*read)(FieldReader& fields);
};

constexpr Family kFamilies[] = {{"llama", ReadLlama},   {"qwen2", ReadQwen2},
                                {"qwen3", ReadQwen3},   {"mistral", ReadMistral},
                                {"gemma2", ReadGemma2}, {"gemma3_text", ReadGemma3}};

DecoderSpec ReadDecoder(FieldReader& fields) {
  const std::string model_type = fields.String("model_type", "");
  for (const Family& family : kFamilies) {
    if (model_type == family.model_type) return family.read(fields);
  }
  const auto name = [](std::string* out, const Family& family) { absl::StrAppend(out, family.model_type); };
  fields.Fail("model_type", model_type.empty() ? "is missing" : absl::StrCat("is \"", model_type, "\""),
              "; supported: ", absl::StrJoin(kFamilies, ", ", name));
  return {};
}

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& model_dir) {
  const std::string path = absl::StrCat(model_dir, "/config.json");
  absl::StatusOr<nlohmann::json> json = ReadJsonObject(path);
  if (!json.ok()) return json.status();
  FieldReader fields(path, *json);
  ModelConfig config;
  config.decoder = ReadDecoder(fields);
  config.quantization = ReadQuantization(fields);
  config.dtype = fields.String(fields.Has("dtype") ? "dtype" : "torch_dtype", "");
  if (!fields.status().ok()) return fields.status();

  const int vocab = config.decoder.vocab_size;
  const std::vector<TokenId> bos = fields.TokenIds("bos_token_id", vocab);
  if (!bos.empty()) config.bos_token_id = bos[0];
  config.eos_token_ids = fields.TokenIds("eos_token_id", vocab);
  if (!fields.status().ok()) return fields.status();

  const std::string generation_path = absl::StrCat(model_dir, "/generation_config.json");
  std::error_code ignored;
  if (!std::filesystem::exists(generation_path, ignored)) return config;
  absl::StatusOr<nlohmann::json> generation_json = ReadJsonObject(generation_path);
  if (!generation_json.ok()) return generation_json.status();
  FieldReader generation(generation_path, *generation_json);
  if (generation.Has("eos_token_id")) config.eos_token_ids = generation.TokenIds("eos_token_id", vocab);
  if (!generation.status().ok()) return generation.status();
  return config;
}

}  // namespace outrider
