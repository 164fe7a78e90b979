#include "coordinator/openai/openai_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rpc/drafters.h"
#include "common/text/json.h"
#include "coordinator/openai/chat_fields.h"
#include "coordinator/openai/grammar_fields.h"
#include "coordinator/openai/json_fields.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

// OpenAI's default for completions; chat has none.
constexpr uint32_t kDefaultMaxTokens = 16;
constexpr size_t kMaxPrompts = 1024;
// Limit on the tokens and alternatives of an answer that is held until it is complete (completion.cc).
constexpr double kMaxAnswerValues = 1 << 24;

// A field of OpenAI's API or of vLLM's extensions that is not supported.
struct Unsupported {
  std::string name;
  // The value that asks for what happens anyway. Null: values that count as absent do (CountsAsAbsent).
  Json harmless = nullptr;
  std::optional<Endpoint> endpoint = std::nullopt;  // the one that refuses it; unset: both
};

const std::vector<Unsupported>& UnsupportedFields() {
  static const auto* const fields = new std::vector<Unsupported>{
      {"bad_words"},
      {"guided_whitespace_pattern"},
      {"include_stop_str_in_output"},
      {"logits_processors"},
      {"prompt_embeds"},
      {"prompt_logprobs"},
      {"return_token_ids"},
      {"return_tokens_as_token_ids"},
      {"skip_special_tokens", true},
      {"truncate_prompt_tokens"},
      {"add_special_tokens", true, Endpoint::kCompletions},
      {"suffix", nullptr, Endpoint::kCompletions},
      {"add_special_tokens", nullptr, Endpoint::kChat},
      {"audio", nullptr, Endpoint::kChat},
      {"chat_template", nullptr, Endpoint::kChat},
      {"documents", nullptr, Endpoint::kChat},
      {"echo", nullptr, Endpoint::kChat},
      {"function_call", "none", Endpoint::kChat},
      {"functions", nullptr, Endpoint::kChat},
      {"modalities", Json::array({"text"}), Endpoint::kChat},
      {"moderation", nullptr, Endpoint::kChat},
      {"reasoning_effort", nullptr, Endpoint::kChat},
      {"verbosity", nullptr, Endpoint::kChat},
      {"web_search_options", nullptr, Endpoint::kChat},
  };
  return *fields;
}

// Accepts values that ask for what happens anyway.
absl::Status RefuseUnsupported(Endpoint endpoint, const Json& body) {
  for (const Unsupported& field : UnsupportedFields()) {
    const auto found = body.find(field.name);
    if (found == body.end() || found->is_null() || field.endpoint.value_or(endpoint) != endpoint) continue;
    if (field.harmless.is_null() ? CountsAsAbsent(*found) : *found == field.harmless) continue;
    const std::string allowed =
        field.harmless.is_null() ? "" : absl::StrCat("; allowed: ", DumpJson(field.harmless));
    return MakeError(absl::StatusCode::kInvalidArgument, "UNSUPPORTED_PARAMETER",
                     absl::StrCat(field.name, ": not supported", allowed), {{"field", field.name}});
  }
  return absl::OkStatus();
}

void ParseSamplingFields(JsonFields& fields, v1::SamplingParams* sampling) {
  const auto real = [&fields](const char* name, auto set) {
    if (auto value = fields.Number(name)) set(static_cast<float>(*value));
  };
  real("temperature", [&](float value) { sampling->set_temperature(value); });
  real("top_p", [&](float value) { sampling->set_top_p(value); });
  real("min_p", [&](float value) { sampling->set_min_p(value); });
  real("repetition_penalty", [&](float value) { sampling->set_repetition_penalty(value); });
  real("presence_penalty", [&](float value) { sampling->set_presence_penalty(value); });
  real("frequency_penalty", [&](float value) { sampling->set_frequency_penalty(value); });
  const Json* top_k = fields.Find("top_k");
  if (top_k != nullptr) sampling->set_top_k(*top_k == -1 ? 0 : fields.Count("top_k").value_or(0));  // -1: all
  sampling->set_min_tokens(fields.Count("min_tokens").value_or(0));
  for (uint32_t id : fields.TokenIds("allowed_token_ids")) sampling->add_allowed_ids(id);

  const Json* biases = fields.Find("logit_bias");
  if (biases == nullptr) return;
  if (!biases->is_object())
    return fields.Refuse("logit_bias", "an object from ids to numbers", Shown(*biases));
  for (const auto& [token, bias] : biases->items()) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(token, &id) || !bias.is_number()) {
      return fields.Refuse("logit_bias", "an object from ids to numbers",
                           absl::StrCat("\"", token, "\": ", Shown(bias)));
    }
    v1::LogitBias* entry = sampling->add_logit_bias();
    entry->set_token(id);
    entry->set_bias(bias.get<float>());
  }
}

void ParseStopFields(JsonFields& fields, Endpoint endpoint, v1::StopOptions* stop) {
  if (const Json* strings = fields.Find("stop")) {
    const Json list = strings->is_array() ? *strings : Json::array({*strings});
    for (const Json& string : list) {
      if (!string.is_string()) return fields.Refuse("stop", "a string or a list of strings", Shown(*strings));
      stop->add_strings(string.get<std::string>());
    }
  }
  for (uint32_t id : fields.TokenIds("stop_token_ids")) stop->add_token_ids(id);
  stop->set_ignore_eos(fields.Bool("ignore_eos").value_or(false));
  std::optional<uint32_t> most = fields.Count("max_tokens");
  if (endpoint == Endpoint::kCompletions) {
    stop->set_max_tokens(most.value_or(kDefaultMaxTokens));
    return;
  }
  if (auto newer = fields.Count("max_completion_tokens")) most = newer;
  if (most) stop->set_max_tokens(*most);
}

void ParseSpeculationFields(JsonFields& fields, v1::SpeculationOptions* speculation) {
  if (auto k = fields.Count("draft_tokens")) speculation->set_draft_tokens(*k);
  if (auto most = fields.Count("max_draft_context")) speculation->set_max_context(*most);
  const auto named = [&fields](const char* field, auto parse, const std::string& allowed, auto set) {
    const std::optional<std::string> name = fields.String(field);
    if (!name) return;
    const auto value = parse(*name);
    if (value == 0) return fields.Refuse(field, allowed, *name);  // UNSPECIFIED
    set(value);
  };
  named("drafter", FromName<v1::DrafterKind>, absl::StrJoin(DrafterNames(), ", "),
        [&](v1::DrafterKind drafter) { speculation->set_drafter(drafter); });
  named("rule", FromName<v1::Rule>, "token, block, coupled",
        [&](v1::Rule rule) { speculation->set_rule(rule); });
  named("schedule", FromName<v1::Schedule>, "lockstep, run_ahead, auto",
        [&](v1::Schedule schedule) { speculation->set_schedule(schedule); });
  if (auto tree = fields.String("tree")) speculation->set_tree(*tree);
}

// Asks for the model's own probabilities at temperature 1, as vLLM does; a greedy answer's would all be 1.
void ParseLogprobFields(JsonFields& fields, Endpoint endpoint, bool echo, v1::LogprobOptions* logprobs) {
  logprobs->set_before_controls(true);
  if (endpoint == Endpoint::kCompletions) {
    if (auto top = fields.Count("logprobs")) {
      logprobs->set_top(*top);
      if (echo) logprobs->set_prompt(*top);
    }
    return;
  }
  const bool wanted = fields.Bool("logprobs").value_or(false);
  const std::optional<uint32_t> top = fields.Count("top_logprobs");
  if (top.value_or(0) > 0 && !wanted) {
    return fields.Refuse("top_logprobs", "0 unless logprobs is true", absl::StrCat(*top));
  }
  if (wanted) logprobs->set_top(top.value_or(0));
}

void ParseSampleFields(JsonFields& fields, v1::GenerateRequest* request) {
  if (auto samples = fields.Count("n")) request->set_n(*samples);
  const uint32_t n = request->has_n() ? request->n() : 1;
  const bool searches = fields.Bool("use_beam_search").value_or(false);
  const std::optional<uint32_t> best_of = fields.Count("best_of");
  if (searches) {
    // vLLM's extension: the n best texts of a search whose width is best_of, or n if that is not set.
    request->mutable_beam()->set_width(best_of.value_or(n));
    if (auto penalty = fields.Number("length_penalty")) request->mutable_beam()->set_length_penalty(*penalty);
  } else if (best_of && *best_of != n) {
    fields.Refuse("best_of", absl::StrCat(n, ", the same as n"), absl::StrCat(*best_of));
  }
  if (auto seed = fields.Bits("seed")) request->set_seed(*seed);
}

void ParseStreamFields(JsonFields& fields, OpenAiRequest* request) {
  request->stream = fields.Bool("stream").value_or(false);
  const Json* options = fields.Find("stream_options");
  if (options == nullptr) return;
  if (!request->stream || !options->is_object()) {
    return fields.Refuse("stream_options", "an object, when stream is true", Shown(*options));
  }
  JsonFields inner(*options);
  request->include_usage = inner.Bool("include_usage").value_or(false);
  request->usage_so_far = inner.Bool("continuous_usage_stats").value_or(false);
  fields.Fail(inner.status());
}

// Parses a text, a list of texts, a list of token ids, or a list of such lists.
void ParsePrompts(JsonFields& fields, OpenAiRequest* request) {
  constexpr char kAllowed[] =
      "a string, a list of strings, a list of token ids, a list of lists of token ids";
  const Json* prompt = fields.Find("prompt");
  if (prompt == nullptr) return fields.Refuse("prompt", kAllowed, "missing");
  const bool several =
      prompt->is_array() && !prompt->empty() && (prompt->front().is_string() || prompt->front().is_array());
  if (several && prompt->size() > kMaxPrompts) {
    return fields.Refuse("prompt", absl::StrCat("at most ", kMaxPrompts, " prompts"),
                         absl::StrCat(prompt->size(), " prompts"));
  }
  const Json list = several ? *prompt : Json::array({*prompt});
  for (const Json& one : list) {
    v1::GenerateRequest& generation = request->prompts.emplace_back();
    if (one.is_string()) {
      generation.set_text(one.get<std::string>());
    } else if (auto ids = AsTokenIds(one)) {
      generation.mutable_tokens()->mutable_ids()->Add(ids->begin(), ids->end());
    } else {
      return fields.Refuse("prompt", kAllowed, Shown(*prompt));
    }
  }
}

// Refuses at once a request whose whole answer would turn out too large after minutes.
absl::Status CheckAnswerSize(const OpenAiRequest& request) {
  const v1::GenerateRequest& common = request.common;
  const double samples = request.prompts.size() * std::max(common.n(), 1u);
  const double values = samples * common.stop().max_tokens() * (common.logprobs().top() + 1.0);
  if (request.stream || values <= kMaxAnswerValues) return absl::OkStatus();
  return InvalidFor("ANSWER_TOO_LARGE", "prompts x n x max_tokens x (logprobs + 1) is ", values,
                    ", more than ", kMaxAnswerValues, "; stream the answer, or ask for less at once");
}

}  // namespace

absl::StatusOr<OpenAiRequest> ParseOpenAiRequest(Endpoint endpoint, const std::string& body) {
  const Json json = OUTRIDER_TRY(ParseBody(body));
  OUTRIDER_TRY(RefuseUnsupported(endpoint, json));
  JsonFields fields(json, body);
  OpenAiRequest request;
  request.endpoint = endpoint;
  request.model = fields.String("model").value_or("");
  request.echo = endpoint == Endpoint::kCompletions && fields.Bool("echo").value_or(false);
  ParseStreamFields(fields, &request);
  v1::GenerateRequest* common = &request.common;
  common->set_echo(request.echo);
  ParseSamplingFields(fields, common->mutable_sampling());
  request.grammar_field = ParseGrammarFields(fields, common->mutable_sampling());
  ParseStopFields(fields, endpoint, common->mutable_stop());
  ParseSpeculationFields(fields, common->mutable_speculation());
  request.speculation_metrics = fields.Bool("spec_decode_metrics").value_or(false);
  ParseLogprobFields(fields, endpoint, request.echo, common->mutable_logprobs());
  ParseSampleFields(fields, common);
  ParsePrediction(fields, common);
  if (endpoint == Endpoint::kCompletions) {
    ParsePrompts(fields, &request);
  } else {
    v1::ChatPrompt* const chat = request.prompts.emplace_back().mutable_chat();
    ParseChatFields(fields, chat);
    request.tools = ParseToolFields(fields, chat);
  }
  OUTRIDER_TRY(fields.status());
  OUTRIDER_TRY(CheckAnswerSize(request));
  return request;
}

}  // namespace outrider
