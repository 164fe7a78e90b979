#include "common/engine/proposers/load.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/engine/decoder/field_reader.h"
#include "common/engine/proposers/head_folder.h"
#include "common/engine/proposers/target_proposers.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

constexpr int kMaxHeads = 64;

using Loaded = absl::StatusOr<std::unique_ptr<Proposer>>;

Loaded LoadLayerSkip(const HeadFolder& folder) {
  const int layers = folder.fields.Int("exit_layer", 1, std::max(1, folder.target.decoder.layers - 1));
  OUTRIDER_TRY(folder.fields.status());
  return std::make_unique<LayerSkip>(folder.target.model, layers);
}

// FasterDecoding's names: head i has residual blocks i.0, i.1, ..., and then its output, unless it uses the
// target's. Some releases prefix all names with "medusa_head.".
Loaded LoadMedusa(const HeadFolder& folder) {
  const int count = folder.fields.Int("medusa_num_heads", 1, kMaxHeads);
  const int layers = folder.fields.Int("medusa_num_layers", 1, kMaxHeads);
  OUTRIDER_TRY(folder.fields.status());
  HeadWeights weights(folder);
  const std::string prefix = weights.Has("medusa_head.0.0.linear.weight") ? "medusa_head." : "";
  const int hidden = folder.hidden();
  std::vector<ResidualHead> heads;
  for (int i = 0; i < count; ++i) {
    ResidualHead& head = heads.emplace_back();
    const std::string name = absl::StrCat(prefix, i, ".");
    for (int layer = 0; layer < layers; ++layer) {
      const std::string linear = absl::StrCat(name, layer, ".linear.");
      ResidualHead::Layer& to = head.layers.emplace_back();
      to.in = weights.Load(linear + "weight", hidden, hidden);
      to.in_bias = weights.Values(linear + "bias", {hidden});
    }
    const std::string output = absl::StrCat(name, layers, ".weight");
    if (weights.Has(output)) head.logits = weights.Load(output, folder.vocab(), hidden);
  }
  OUTRIDER_TRY(weights.status());
  return std::make_unique<ResidualHeads>(ProposerKind::kMedusa, folder.target.model, hidden, folder.vocab(),
                                         std::move(heads));
}

Loaded LoadBlockwise(const HeadFolder& folder) {
  const int count = folder.fields.Int("num_heads", 1, kMaxHeads);
  const int inner = ReadInner(folder.fields);
  OUTRIDER_TRY(folder.fields.status());
  HeadWeights weights(folder);
  const int hidden = folder.hidden();
  std::vector<ResidualHead> heads;
  for (int i = 0; i < count; ++i) {
    ResidualHead::Layer& to = heads.emplace_back().layers.emplace_back();
    to.in = weights.Load(absl::StrCat(i, ".0.weight"), inner, hidden);
    to.in_bias = weights.Values(absl::StrCat(i, ".0.bias"), {inner});
    to.out = weights.Load(absl::StrCat(i, ".2.weight"), hidden, inner);
    to.out_bias = weights.Values(absl::StrCat(i, ".2.bias"), {hidden});
  }
  OUTRIDER_TRY(weights.status());
  return std::make_unique<ResidualHeads>(ProposerKind::kBlockwise, folder.target.model, hidden,
                                         folder.vocab(), std::move(heads));
}

Loaded LoadLookAhead(const HeadFolder& folder) {
  const int count = folder.fields.Int("lookahead_tokens", 1, kMaxHeads);
  OUTRIDER_TRY(folder.fields.status());
  HeadWeights weights(folder);
  std::vector<float> embeddings = weights.Values("lookahead.weight", {count, folder.hidden()});
  OUTRIDER_TRY(weights.status());
  return std::make_unique<LookAhead>(folder.target.model, folder.hidden(), std::move(embeddings));
}

// The kind that the config names. Releases of others do not name one: their other fields imply it.
std::optional<ProposerKind> KindOf(FieldReader& fields, const nlohmann::json& config) {
  if (fields.Has("proposer")) return ProposerFromName(fields.String("proposer", ""));
  if (fields.Has("speculators_model_type")) {
    const std::string type = fields.String("speculators_model_type", "");
    if (type == "eagle" || type == "eagle3") return ProposerKind::kEagle;
    fields.Fail("speculators_model_type", "is none of \"eagle\" and \"eagle3\": \"", type, "\"");
  }
  if (config.contains("medusa_num_heads")) return ProposerKind::kMedusa;
  if (fields.Has("num_attention_heads") && fields.Has("num_hidden_layers") &&
      config["num_hidden_layers"] == 1)
    return ProposerKind::kEagle;
  return std::nullopt;
}

Loaded LoadProposer(const std::string& dir, const ProposerTarget& target) {
  const std::string path = dir + "/config.json";
  const nlohmann::json config = OUTRIDER_TRY(JsonObjectIn(path));
  FieldReader fields(path, config);
  const HeadFolder folder{dir, fields, target};
  const std::optional<ProposerKind> kind = KindOf(fields, config);
  if (!kind) {
    fields.Fail("proposer", "must be one of ", absl::StrJoin(kProposerNames, ", "));
    return fields.status();
  }
  const std::string trained_for = fields.String("target_weights_hash", "");
  const std::string own = absl::StrCat(absl::Hex(target.weights_hash, absl::kZeroPad16));
  if (!trained_for.empty() && trained_for != own) {
    return Invalid(path, ": trained for a target with the weights ", trained_for, ", but those of ",
                   target.options.model_dir, " are ", own);
  }
  CheckSizes(fields, target.decoder);
  OUTRIDER_TRY(fields.status());
  switch (*kind) {
    case ProposerKind::kMedusa:
      return LoadMedusa(folder);
    case ProposerKind::kBlockwise:
      return LoadBlockwise(folder);
    case ProposerKind::kEagle:
      return LoadEagle(folder);
    case ProposerKind::kLayerSkip:
      return LoadLayerSkip(folder);
    case ProposerKind::kPass:
      return LoadLookAhead(folder);
  }
  return absl::InternalError("no such proposer");
}

}  // namespace

size_t ProposerBytesPerBlock(const RunnerOptions& options, const DecoderConfig& decoder) {
  size_t floats = 0;
  for (const std::string& dir : options.heads) {
    const std::string path = dir + "/config.json";
    const absl::StatusOr<nlohmann::json> config = JsonObjectIn(path);
    if (!config.ok()) continue;
    FieldReader fields(path, *config);
    if (KindOf(fields, *config) != ProposerKind::kEagle) continue;
    const absl::StatusOr<DecoderConfig> layer = ReadEagleConfig(fields, decoder);
    if (!layer.ok()) continue;
    floats += static_cast<size_t>(decoder.hidden_size) + layer->kv_numbers();
  }
  return floats * sizeof(float) * static_cast<size_t>(options.block_size);
}

absl::StatusOr<std::vector<std::unique_ptr<Proposer>>> LoadProposers(const ProposerTarget& target) {
  if (!target.model.has_hidden_states()) {
    return Invalid("--heads ", target.options.heads.front(),
                   ": needs --device cpu or --engine torch, in one process");
  }
  std::vector<std::unique_ptr<Proposer>> proposers;
  for (const std::string& dir : target.options.heads) {
    auto proposer = OUTRIDER_TRY(LoadProposer(dir, target));
    for (const std::unique_ptr<Proposer>& other : proposers) {
      if (other->kind() == proposer->kind()) {
        return Invalid("--heads ", dir, ": there is another ", NameOf(other->kind()));
      }
    }
    proposers.push_back(std::move(proposer));
  }
  std::ranges::sort(proposers, [](const auto& a, const auto& b) { return a->kind() < b->kind(); });
  return proposers;
}

}  // namespace outrider
