#include "coordinator/api/parse_request.h"

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/rpc/convert.h"
#include "common/text/json.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

// Of what is read here nothing depends on it.
constexpr int kAnyVocabulary = std::numeric_limits<int>::max();

std::optional<float> Number(const Json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end() || !found->is_number()) return std::nullopt;
  return found->get<float>();
}

}  // namespace

absl::StatusOr<v1::SamplingParams> ReadSamplingDefaults(const std::string& folder) {
  v1::SamplingParams sampling;
  const std::string path = (std::filesystem::path(folder) / "generation_config.json").string();
  const auto damaged = [&path](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
  };
  const auto config = JsonObjectIfThere(path);
  if (!config.ok()) return config.status();
  if (const auto value = Number(*config, "temperature")) sampling.set_temperature(*value);
  if (const auto value = Number(*config, "top_p")) sampling.set_top_p(*value);
  if (const auto value = Number(*config, "min_p")) sampling.set_min_p(*value);
  if (const auto value = Number(*config, "repetition_penalty")) sampling.set_repetition_penalty(*value);
  if (const auto value = Number(*config, "top_k")) {
    if (!(*value >= 0 && *value <= 1e9)) return damaged("top_k is not in [0, 1e9]");
    sampling.set_top_k(static_cast<uint32_t>(*value));
  }
  const absl::Status status = ValidateSamplingParams(ParseSampling(sampling, {}), kAnyVocabulary);
  if (!status.ok()) return damaged(status.message());
  return sampling;
}

void FillIn(const v1::SamplingParams& defaults, v1::SamplingParams* sampling) {
  v1::SamplingParams filled = defaults;
  filled.MergeFrom(*sampling);
  *sampling = std::move(filled);
}

}  // namespace outrider
