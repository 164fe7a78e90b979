#include "client/cli/render.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/rpc/drafters.h"
#include "common/text/json.h"

namespace outrider {
namespace {

constexpr char kReset[] = "\033[0m";
constexpr char kDim[] = "\033[2m";
constexpr char kRejected[] = "\033[9;31m";

// The colours of Figure 1 of Leviathan et al.: green for kept tokens, blue for the target's corrections.
const char* ColourOf(v1::TokenKind kind) {
  switch (kind) {
    case v1::TOKEN_KIND_ACCEPTED:
      return "\033[32m";
    case v1::TOKEN_KIND_CORRECTED:
      return "\033[1;34m";
    case v1::TOKEN_KIND_BONUS:
      return "\033[1;35m";
    default:
      return "";
  }
}

using Json = nlohmann::ordered_json;

Json ListOf(const auto& repeated) { return std::vector<uint64_t>(repeated.begin(), repeated.end()); }

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
          {"eos_ids", ListOf(info.eos_ids())},
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
                         {"prediction_tokens", stats.prediction_tokens()},
                         {"accepted_prediction_tokens", stats.accepted_prediction_tokens()},
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
                         {"offered_per_rank", ListOf(stats.offered_per_rank())},
                         {"accepted_per_rank", ListOf(stats.accepted_per_rank())},
                         {"expected_acceptance", stats.expected_acceptance()},
                         {"observed_over_expected", stats.observed_over_expected()},
                         {"drafted_per_position", ListOf(stats.drafted_per_position())},
                         {"accepted_per_position", ListOf(stats.accepted_per_position())}};
  if (!logprobs.empty()) json["logprobs"] = logprobs;
  for (const v1::PositionLogprobs& position : completion.prompt_logprobs) {
    json["prompt_logprobs"].push_back(PositionJson(position));
  }
  return json;
}

// The speed after the first token. The time for the prompt has nothing to do with speculation, and depends on
// the prefix cache.
std::string Speed(const v1::Usage& usage) {
  const uint32_t tokens = usage.completion_tokens();
  if (tokens < 2 || usage.decode_seconds() <= 0) {
    return absl::StrFormat("%d token%s in %.2f s", tokens, tokens == 1 ? "" : "s",
                           usage.first_token_seconds());
  }
  return absl::StrFormat("%d tokens, the first after %.2f s, then %.1f tokens/s", tokens,
                         usage.first_token_seconds(), (tokens - 1) / usage.decode_seconds());
}

}  // namespace

OutputStyle StyleOfStandardOutput() {
  const auto variable = [](const char* name) {
    const char* value = getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  return {terminal, terminal && variable("NO_COLOR").empty() && variable("TERM") != "dumb"};
}

std::string OnOneLine(std::string_view text) {
  return absl::StrReplaceAll(std::string(text), {{"\n", "↵"}, {"\r", "␍"}, {"\t", "⇥"}});
}

std::string WithoutControls(std::string_view text) {
  std::string clean;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F steer terminals as well.
    const bool wide = byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (wide) ++i;
    if (wide || byte == 0x7F || (byte < 0x20 && byte != '\n' && byte != '\t')) {
      clean += "\uFFFD";
    } else {
      clean += text[i];
    }
  }
  return clean;
}

std::string Renderer::Paint(std::string_view text, v1::TokenKind kind) const {
  const std::string shown = style_.terminal ? WithoutControls(text) : std::string(text);
  const std::string colour = style_.colour ? ColourOf(kind) : "";
  if (colour.empty() || shown.empty()) return shown;
  return absl::StrCat(colour, shown, kReset);
}

std::string Renderer::Legend() const {
  if (!style_.colour) return "";
  return absl::StrCat(Paint("accepted", v1::TOKEN_KIND_ACCEPTED), " from the draft, ",
                      Paint("corrected", v1::TOKEN_KIND_CORRECTED), ", ",
                      Paint("bonus", v1::TOKEN_KIND_BONUS), " and plain from the target\n");
}

std::string Renderer::RoundLegend() const {
  return absl::StrCat("a line a round: ", Paint("accepted", v1::TOKEN_KIND_ACCEPTED), " ",
                      Rejected("rejected"), " ", TargetToken("corrected", v1::TOKEN_KIND_CORRECTED), " ",
                      TargetToken("bonus", v1::TOKEN_KIND_BONUS),
                      " plain; > begun while the round before was verified\n");
}

std::string Renderer::Prompt(std::string_view prompt) const {
  const std::string shown = style_.terminal ? WithoutControls(prompt) : std::string(prompt);
  return style_.colour ? absl::StrCat(kDim, shown, kReset) : shown;
}

std::string Renderer::Chunk(const v1::GenerateResponse& chunk) const {
  std::string text;
  for (const v1::GeneratedToken& token : chunk.tokens()) text += Paint(token.text(), token.kind());
  return text;
}

std::string Renderer::Rejected(std::string_view text) const {
  if (text.empty()) return "";
  const std::string shown = style_.terminal ? WithoutControls(text) : std::string(text);
  return style_.colour ? absl::StrCat(kRejected, shown, kReset) : absl::StrCat("[-", shown, "-]");
}

std::string Renderer::TargetToken(std::string_view text, v1::TokenKind kind) const {
  const std::string shown = Paint(text, kind);
  if (!style_.colour && kind == v1::TOKEN_KIND_CORRECTED) return absl::StrCat("{+", shown, "+}");
  if (!style_.colour && kind == v1::TOKEN_KIND_BONUS) return absl::StrCat("{*", shown, "*}");
  return shown;
}

// A line for each node, below its parent's line.
std::string Renderer::Tree(const v1::RoundTrace& trace, int committed) const {
  const std::set<uint32_t> kept(trace.path().begin(),
                                trace.path().begin() + std::min(committed, trace.path_size()));
  std::string lines;
  const auto draw = [&](const auto& self, int parent, const std::string& indent) -> void {
    std::vector<int> children;
    for (int i = 0; i < trace.parents_size(); ++i) {
      if (trace.parents(i) == parent) children.push_back(i);
    }
    for (const int child : children) {
      const bool last = child == children.back();
      const std::string text = OnOneLine(trace.drafted_text(child));
      absl::StrAppend(
          &lines, indent, last ? "└ " : "├ ",
          kept.contains(static_cast<uint32_t>(child)) ? Paint(text, v1::TOKEN_KIND_ACCEPTED) : Rejected(text),
          "\n");
      self(self, child, indent + (last ? "  " : "│ "));
    }
  };
  draw(draw, -1, "      ");
  return lines;
}

std::string Renderer::Round(const v1::GenerateResponse& chunk) const {
  const v1::RoundTrace& trace = chunk.trace();
  const bool is_tree = trace.parents_size() > 0;
  const auto committed = static_cast<int>(
      std::ranges::count(chunk.tokens(), v1::TOKEN_KIND_ACCEPTED, &v1::GeneratedToken::kind));
  std::string kept;
  std::string rejected;
  for (int i = 0; i < std::min(committed, trace.path_size()); ++i) {
    kept += OnOneLine(trace.drafted_text(static_cast<int>(trace.path(i))));
  }
  for (int i = 0; i < trace.drafted_text_size() && !is_tree; ++i) {
    (i < committed ? kept : rejected) += OnOneLine(trace.drafted_text(i));
  }
  std::string line = absl::StrFormat("%4d%s ", trace.round(), trace.drafted_ahead() ? ">" : " ");
  line += Paint(kept, v1::TOKEN_KIND_ACCEPTED);
  line += Rejected(rejected);
  if (chunk.tokens_size() > committed) line += TargetToken(OnOneLine(trace.token_text()), trace.kind());
  return line + "\n" + Tree(trace, committed);
}

std::string Summary(const v1::Finish& finish) {
  const v1::SpeculationStats& stats = finish.speculation();
  std::string line =
      absl::StrFormat("%s; %d target calls, %.2f tokens a call; ", Speed(finish.usage()), stats.rounds(),
                      Quotient(finish.usage().completion_tokens(), stats.rounds()));
  if (stats.drafted() == 0) return line + "nothing was drafted";
  absl::StrAppendFormat(&line, "acceptance %.1f %% (%d of %d drafted)", 100 * stats.acceptance_rate(),
                        stats.accepted(), stats.drafted());
  if (stats.tree_rounds() > 0) absl::StrAppendFormat(&line, "; %d trees", stats.tree_rounds());
  if (stats.ahead_rounds() > 0) {
    absl::StrAppendFormat(&line, "; ran ahead, %d of %d rounds foreseen", stats.ahead_hits(),
                          stats.ahead_rounds());
  }
  return line;
}

std::string Comparison(const Completion& drafted, const Completion& plain) {
  const v1::Usage& usage = plain.finish.usage();
  return absl::StrFormat(
      "plain decoding: %s; %.2f times as fast with speculation\nsame text as plain decoding: %s",
      Speed(usage), Quotient(usage.decode_seconds(), drafted.finish.usage().decode_seconds()),
      drafted.text == plain.text ? "yes" : "no");
}

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
