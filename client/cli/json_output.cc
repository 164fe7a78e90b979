#include "client/cli/json_output.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/rpc/names.h"
#include "common/text/json.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

Json PositionJson(const v1::PositionLogprobs& position) {
  const auto token_json = [](const v1::TokenLogprob& token) {
    Json json = {{"id", token.id()}, {"text", token.text()}, {"logprob", token.logprob()}};
    if (!token.bytes().empty())
      json["bytes"] = std::vector<uint8_t>(token.bytes().begin(), token.bytes().end());
    return json;
  };
  Json json = token_json(position.token());
  json["top"] = Json::array();
  for (const v1::TokenLogprob& token : position.top()) json["top"].push_back(token_json(token));
  return json;
}

Json ServerJson(const v1::ServerInfo& info) {
  Json proposers = Json::array();
  for (const v1::ProposerInfo& proposer : info.proposers()) {
    proposers.push_back({{"proposer", NameOf(proposer.proposer())},
                         {"max_draft_tokens", proposer.max_draft_tokens()},
                         {"greedy", proposer.greedy()}});
  }
  return {{"model", info.model()},
          {"version", info.version()},
          {"engine", info.engine()},
          {"row_invariant", info.row_invariant()},
          {"device", info.device()},
          {"dtype", info.dtype()},
          {"weight_bytes", info.weight_bytes()},
          {"vocab_size", info.vocab_size()},
          {"max_context", info.max_context()},
          {"max_draft_tokens", info.max_draft_tokens()},
          {"max_tree_nodes", info.max_tree_nodes()},
          {"tree_row_invariant", info.tree_row_invariant()},
          {"inexact_trees", info.inexact_trees()},
          {"proposers", std::move(proposers)},
          {"kv_blocks", info.kv_blocks()},
          {"block_size", info.block_size()},
          {"eos_ids", std::vector<uint32_t>(info.eos_ids().begin(), info.eos_ids().end())},
          {"boot_id", absl::StrCat(absl::Hex(info.boot_id(), absl::kZeroPad16))},
          {"fingerprint", absl::StrCat(absl::Hex(info.fingerprint(), absl::kZeroPad16))},
          {"numerics", info.numerics()}};
}

Json CompletionJson(const Completion& completion) {
  Json tokens = Json::array();
  Json kinds = Json::array();
  Json logprobs = Json::array();
  for (const v1::GeneratedToken& token : completion.tokens) {
    tokens.push_back(token.id());
    kinds.push_back(NameOf(token.kind()));
    if (token.has_logprobs()) logprobs.push_back(PositionJson(token.logprobs()));
  }
  const v1::Usage& usage = completion.finish.usage();
  const v1::SpeculationStats& stats = completion.finish.speculation();
  const auto& drafted = stats.drafted_per_position();
  const auto& accepted = stats.accepted_per_position();
  const auto& offered = stats.offered_per_rank();
  const auto& of_rank = stats.accepted_per_rank();
  Json json = {{"text", completion.text},
               {"tokens", tokens},
               {"kinds", kinds},
               {"finish_reason", NameOf(completion.finish.reason())}};
  if (!completion.finish.stop_string().empty()) json["stop_string"] = completion.finish.stop_string();
  if (completion.finish.has_score()) json["score"] = completion.finish.score();
  json["usage"] = {{"prompt_tokens", usage.prompt_tokens()},
                   {"completion_tokens", usage.completion_tokens()},
                   {"cached_prompt_tokens", usage.cached_prompt_tokens()},
                   {"first_token_seconds", usage.first_token_seconds()},
                   {"decode_seconds", usage.decode_seconds()}};
  json["speculation"] = {{"drafted", stats.drafted()},
                         {"accepted", stats.accepted()},
                         {"accepted_after_end", stats.accepted_after_end()},
                         {"emitted",
                          {{"accepted", stats.emitted_accepted()},
                           {"corrected", stats.emitted_corrected()},
                           {"bonus", stats.emitted_bonus()},
                           {"plain", stats.emitted_plain()}}},
                         {"rounds", stats.rounds()},
                         {"acceptance_rate", stats.acceptance_rate()},
                         {"mean_accepted_length", stats.mean_accepted_length()},
                         {"exact", stats.exact()},
                         {"schedule", NameOf(stats.schedule())},
                         {"ahead_rounds", stats.ahead_rounds()},
                         {"ahead_hits", stats.ahead_hits()},
                         {"tree_rounds", stats.tree_rounds()},
                         {"offered_per_rank", std::vector<uint64_t>(offered.begin(), offered.end())},
                         {"accepted_per_rank", std::vector<uint64_t>(of_rank.begin(), of_rank.end())},
                         {"expected_acceptance", stats.expected_acceptance()},
                         {"observed_over_expected", stats.observed_over_expected()},
                         {"drafted_per_position", std::vector<uint64_t>(drafted.begin(), drafted.end())},
                         {"accepted_per_position", std::vector<uint64_t>(accepted.begin(), accepted.end())}};
  if (!logprobs.empty()) json["logprobs"] = logprobs;
  for (const v1::PositionLogprobs& position : completion.prompt_logprobs) {
    json["prompt_logprobs"].push_back(PositionJson(position));
  }
  return json;
}

}  // namespace

std::string ToJson(const std::vector<Completion>& samples) {
  if (samples.size() == 1) return DumpJson(CompletionJson(samples.front()));
  Json json;
  for (const Completion& sample : samples) json["samples"].push_back(CompletionJson(sample));
  return DumpJson(json);
}

std::string ToJson(const v1::DescribeResponse& description) {
  Json json = {{"version", description.version()},
               {"target", description.has_target() ? ServerJson(description.target()) : Json()},
               {"draft", description.has_draft() ? ServerJson(description.draft()) : Json()},
               {"degraded", description.degraded()},
               {"running", description.running()},
               {"max_draft_tokens", description.max_draft_tokens()},
               {"defaults",
                {{"drafter", NameOf(description.defaults().drafter())},
                 {"draft_tokens", description.defaults().has_draft_tokens()
                                      ? Json(description.defaults().draft_tokens())
                                      : Json("auto")},
                 {"rule", NameOf(description.defaults().rule())},
                 {"schedule", NameOf(description.defaults().schedule())},
                 {"tree", description.defaults().tree()}}},
               {"totals",
                {{"rounds", description.totals().rounds()},
                 {"drafts", description.totals().drafts()},
                 {"drafted", description.totals().drafted()},
                 {"accepted", description.totals().accepted()},
                 {"emitted", description.totals().emitted()},
                 {"observed_accepted", description.totals().observed_accepted()},
                 {"expected_accepted", description.totals().expected_accepted()},
                 {"ahead_rounds", description.totals().ahead_rounds()},
                 {"ahead_hits", description.totals().ahead_hits()}}},
               {"tokenizer_fingerprint",
                absl::StrCat(absl::Hex(description.tokenizer_fingerprint(), absl::kZeroPad16))}};
  json["mixed_numerics"] = description.mixed_numerics();
  json["servers"] = Json::array();
  for (const v1::ServerState& server : description.servers()) {
    json["servers"].push_back({{"role", server.role()},
                               {"address", server.address()},
                               {"up", server.up()},
                               {"going_away", server.going_away()},
                               {"sequences", server.sequences()},
                               {"load", server.load()},
                               {"problem", server.problem()}});
  }
  return DumpJson(json);
}

}  // namespace outrider
