#include "common/spec/status.h"
#include "common/text/tokenizer_spec.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "common/text/json.h"
#include "common/text/strings.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

// The fields of a config that hold special tokens.
constexpr const char* kSpecial[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};
constexpr char kMoreSpecial[] = "additional_special_tokens";

// A token is a string or an object.
std::optional<AddedToken> ParseToken(const Json& json, bool special) {
  AddedToken token;
  token.special = special;
  token.normalized = !special;
  if (json.is_string()) {
    token.content = json.get<std::string>();
    return token;
  }
  if (!json.is_object() || !json.contains("content") || !json["content"].is_string()) return std::nullopt;
  token.content = json["content"].get<std::string>();
  const auto flag = [&](const char* name, bool otherwise) {
    const auto found = json.find(name);
    return found != json.end() && found->is_boolean() ? found->get<bool>() : otherwise;
  };
  token.special = special || flag("special", false);
  token.single_word = flag("single_word", false);
  token.lstrip = flag("lstrip", false);
  token.rstrip = flag("rstrip", false);
  token.normalized = flag("normalized", !token.special);
  return token;
}

// The special tokens that a config names, in transformers' order.
std::vector<AddedToken> SpecialTokens(const Json& config) {
  std::vector<AddedToken> tokens;
  const auto add = [&](const Json& json) {
    if (auto token = ParseToken(json, /*special=*/true)) tokens.push_back(*std::move(token));
  };
  for (const char* name : kSpecial) {
    if (config.contains(name)) add(config[name]);
  }
  if (config.contains(kMoreSpecial) && config[kMoreSpecial].is_array()) {
    for (const Json& token : config[kMoreSpecial]) add(token);
  }
  return tokens;
}

// The added tokens, by the ids that the files give them. These ids only decide the order.
std::map<int64_t, AddedToken> ListedTokens(const Json& config, const Json& added,
                                           const std::vector<AddedToken>& special) {
  std::map<int64_t, AddedToken> listed;
  const auto decoder = config.find("added_tokens_decoder");
  if (decoder != config.end() && decoder->is_object()) {
    for (const auto& [id, json] : decoder->items()) {
      int64_t number = 0;
      auto token = ParseToken(json, /*special=*/false);
      if (absl::SimpleAtoi(id, &number) && token) listed[number] = *std::move(token);
    }
    return listed;
  }
  absl::flat_hash_set<std::string> names;
  for (const AddedToken& token : special) names.insert(token.content);
  for (const auto& [content, id] : added.items()) {
    if (!id.is_number_integer()) continue;
    const bool is_special = names.contains(content);
    listed[id.get<int64_t>()] = {.content = content, .special = is_special, .normalized = !is_special};
  }
  return listed;
}

}  // namespace

absl::Status AddTokensFromFolder(const std::string& folder, TokenizerSpec* spec) {
  Json config = OUTRIDER_TRY(JsonObjectIfThere<Json>(Concat(folder, "/", "tokenizer_config.json")));
  const Json added = OUTRIDER_TRY(JsonObjectIfThere<Json>(Concat(folder, "/", "added_tokens.json")));
  if (!config.contains("added_tokens_decoder")) {
    const Json map = OUTRIDER_TRY(JsonObjectIfThere<Json>(Concat(folder, "/", "special_tokens_map.json")));
    for (const auto& [name, token] : map.items()) {
      if (!config.contains(name) || config[name].is_null()) config[name] = token;
    }
  }
  const std::vector<AddedToken> special = SpecialTokens(config);

  absl::flat_hash_map<std::string, TokenId> vocab(spec->vocab.begin(), spec->vocab.end());
  absl::flat_hash_set<std::string> present;
  TokenId next = spec->vocab.empty() ? 0 : spec->vocab.back().second + 1;
  for (const AddedToken& token : spec->added) {
    present.insert(token.content);
    next = std::max(next, token.id + 1);
  }
  const auto add = [&](AddedToken token) {
    if (token.content.empty() || !present.insert(token.content).second) return;
    const auto known = vocab.find(token.content);
    token.id = known != vocab.end() ? known->second : next++;
    spec->added.push_back(std::move(token));
  };
  for (auto& [id, token] : ListedTokens(config, added, special)) add(token);
  for (const AddedToken& token : special) add(token);
  std::ranges::sort(spec->added, {}, &AddedToken::id);
  return absl::OkStatus();
}

}  // namespace outrider
