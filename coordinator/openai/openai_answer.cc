#include "coordinator/openai/openai_answer.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/rpc/drafters.h"
#include "common/rpc/error.h"
#include "common/rpc/fresh_bits.h"
#include "common/text/json.h"
#include "common/text/utf8.h"
#include "coordinator/api/renamed_field.h"
#include "coordinator/generation/round_tally.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

// The members of an object, without its braces.
std::string Members(const Json& object) {
  const std::string text = DumpJson(object);
  return text.substr(1, text.size() - 2);
}

Json NullIfEmpty(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

size_t CountCharacters(const std::string& text) {
  return static_cast<size_t>(std::ranges::count(text, false, IsContinuation));
}

constexpr double kMinLogprob = -9999.0;  // vLLM's stand-in for -infinity, which JSON lacks

double Finite(double logprob) { return std::max(logprob, kMinLogprob); }

Json WithBytes(const v1::TokenLogprob& token) {
  Json bytes = Json::array();
  for (unsigned char byte : token.bytes().empty() ? token.text() : token.bytes()) bytes.push_back(byte);
  return {{"token", token.text()}, {"logprob", Finite(token.logprob())}, {"bytes", std::move(bytes)}};
}

void Append(const Json& item, std::string* list) {
  absl::StrAppend(list, list->empty() ? "" : ",", DumpJson(item));
}

struct Kind {
  int status;
  const char* type;
};

Kind KindOf(absl::StatusCode code) {
  static const auto* const kinds = new std::map<absl::StatusCode, Kind>{
      {absl::StatusCode::kInvalidArgument, {400, "invalid_request_error"}},
      {absl::StatusCode::kOutOfRange, {400, "invalid_request_error"}},
      {absl::StatusCode::kUnauthenticated, {401, "invalid_request_error"}},
      {absl::StatusCode::kPermissionDenied, {403, "invalid_request_error"}},
      {absl::StatusCode::kNotFound, {404, "invalid_request_error"}},
      {absl::StatusCode::kResourceExhausted, {429, "rate_limit_error"}},
      {absl::StatusCode::kUnavailable, {503, "service_unavailable_error"}},
      {absl::StatusCode::kDeadlineExceeded, {504, "timeout_error"}},
  };
  const auto kind = kinds->find(code);
  return kind != kinds->end() ? kind->second : Kind{500, "server_error"};
}

// OpenAI's name for a field of GenerateRequest. The gateway's own errors have OpenAI's names already.
std::string ParamOf(const std::string& field, Endpoint endpoint, const std::string& grammar_field) {
  const bool chat = endpoint == Endpoint::kChat;
  static const auto* const names = new std::map<std::string, std::string>{
      {"text", "prompt"},
      {"tokens.ids", "prompt"},
      {"chat", "messages"},
      {"chat.chat_template_kwargs", "chat_template_kwargs"},
      {"chat.messages", "messages"},
      {"chat.tools", "tools"},
      {"chat.messages.role", "messages"},
      {"logprobs.prompt", "logprobs"},
      {"sampling.allowed_ids", "allowed_token_ids"},
      {"stop.strings", "stop"},
      {"stop.token_ids", "stop_token_ids"},
  };
  if (const auto name = names->find(field); name != names->end()) return name->second;
  if (field == "logprobs.top") return chat ? "top_logprobs" : "logprobs";
  if (field == "prompt") return chat ? "messages" : "prompt";
  if (field == "sampling.grammar" && !grammar_field.empty()) return grammar_field;
  for (const char* section : {"sampling.", "stop.", "speculation."}) {
    if (absl::StartsWith(field, section)) return field.substr(std::string(section).size());
  }
  return field;
}

std::string CodeOf(const std::string& reason) {
  if (reason == "FIELD_INVALID") return "invalid_value";
  if (reason == "UNAUTHENTICATED") return "invalid_api_key";
  return absl::AsciiStrToLower(reason);
}

}  // namespace

std::string ServerSentEvent(const std::string& data) { return "data: " + data + "\n\n"; }
std::string DoneEvent() { return ServerSentEvent("[DONE]"); }

OpenAiAnswer::OpenAiAnswer(const OpenAiRequest* request, AnswerHeader header)
    : request_(request), header_(std::move(header)) {
  speculation_.set_exact(true);
}

std::pair<const size_t, OpenAiAnswer::Choice>& OpenAiAnswer::AddTo(size_t prompt,
                                                                   const v1::GenerateResponse& chunk) {
  if (chunk.has_prompt() || !chunk.prompt_logprobs().empty()) {
    Echo& echo = echoes_[prompt];
    echo.prompt.MergeFrom(chunk.prompt());
    echo.positions.MergeFrom(chunk.prompt_logprobs());
    const size_t bytes = chunk.SpaceUsedLong();
    echo.bytes += bytes;
    bytes_ += bytes;
  }
  const auto form = request_->endpoint == Endpoint::kChat ? OpenAiLogprobs::Form::kChat
                                                          : OpenAiLogprobs::Form::kCompletions;
  auto& added = *choices_.try_emplace(prompt * request_->samples() + chunk.sample(), form).first;
  Choice& choice = added.second;
  bytes_ -= choice.bytes();
  // Chunks without tokens only report on the prompt, and more chunks that do may follow.
  if (request_->echo && !choice.echoed && (!chunk.tokens().empty() || chunk.has_finish())) {
    BeginWithPrompt(prompt, choice);
  }
  AddText(choice, chunk.text(), chunk.has_finish());
  for (const v1::GeneratedToken& token : chunk.tokens()) {
    if (token.has_logprobs()) choice.logprobs.Add(token.logprobs());
  }
  bytes_ += choice.bytes();
  choice.prompt_tokens += chunk.prompt_tokens();
  choice.tokens += static_cast<uint32_t>(chunk.tokens_size());
  if (chunk.has_finish()) {
    choice.finish_reason = NameOf(chunk.finish().reason());
    // OpenAI's API reports tool_calls unless the request named the function to call.
    const bool calls = choice.parser && choice.parser->calls() > 0 && choice.finish_reason == "stop";
    if (calls && request_->tools.choice != ToolUse::Choice::kNamed) choice.finish_reason = "tool_calls";
    choice.stop_string = chunk.finish().stop_string();
    Count(chunk.finish(), chunk.sample() == 0);
  }
  return added;
}

void OpenAiAnswer::AddText(Choice& choice, const std::string& text, bool is_end) const {
  if (request_->tools.functions.empty()) {
    choice.text += text;
    return;
  }
  if (!choice.parser) {
    absl::flat_hash_set<std::string> names;
    for (const ToolUse::Function& function : request_->tools.functions) names.insert(function.name);
    choice.parser.emplace(header_.tool_format, std::move(names), request_->tools.parallel);
  }
  const auto add = [&](const ToolText& part) {
    choice.text += part.content;
    for (const ToolCallPart& call : part.calls) AddCall(choice, call);
  };
  add(choice.parser->Take(text));
  if (is_end) add(choice.parser->End());
}

void OpenAiAnswer::AddCall(Choice& choice, const ToolCallPart& part) const {
  if (choice.calls.is_null()) choice.calls = Json::array();
  choice.call_bytes += part.name.size() + part.arguments.size();
  // Joins parts of the same call within an event, or within a whole answer.
  const bool goes_on = part.name.empty() && !choice.calls.empty();
  if (goes_on) {
    auto& arguments = choice.calls.back()["function"]["arguments"].get_ref<std::string&>();
    arguments += part.arguments;
    return;
  }
  Json call = Json::object();
  if (request_->stream) call["index"] = part.call;
  if (!part.name.empty()) {
    // Mistral's templates refuse ids of any other form.
    const uint64_t bits = FreshBits();
    call["id"] = header_.tool_format == v1::TOOL_FORMAT_MISTRAL ? absl::StrFormat("%09x", bits >> 28)
                                                                : absl::StrFormat("call_%016x", bits);
    call["type"] = "function";
    call["function"]["name"] = part.name;
  }
  call["function"]["arguments"] = part.arguments;
  choice.calls.push_back(std::move(call));
}

void OpenAiAnswer::BeginWithPrompt(size_t prompt, Choice& choice) {
  choice.echoed = true;
  Echo& echo = echoes_[prompt];
  const v1::GenerateRequest& asked = request_->prompts[prompt];
  choice.text = asked.has_tokens() ? echo.prompt.text() : asked.text();
  if (request_->logprobs()) {
    // Characters that come from no other token belong to the first. It has none if it is a BOS.
    size_t characters = CountCharacters(choice.text);
    for (const v1::PositionLogprobs& position : echo.positions) {
      characters -= std::min(characters, CountCharacters(position.token().text()));
    }
    choice.logprobs.AddFirst(echo.prompt.first(), characters);
    for (const v1::PositionLogprobs& position : echo.positions) choice.logprobs.Add(position);
  }
  if (++echo.choices < request_->samples()) return;
  bytes_ -= echo.bytes;
  echoes_.erase(prompt);
}

void OpenAiAnswer::Count(const v1::Finish& finish, bool first_sample) {
  const v1::Usage& usage = finish.usage();
  if (first_sample) {
    usage_.set_prompt_tokens(usage_.prompt_tokens() + usage.prompt_tokens());
    usage_.set_cached_prompt_tokens(usage_.cached_prompt_tokens() + usage.cached_prompt_tokens());
  }
  usage_.set_completion_tokens(usage_.completion_tokens() + usage.completion_tokens());
  usage_.set_max_tokens(std::max(usage_.max_tokens(), usage.max_tokens()));
  AddCounts(finish.speculation(), &speculation_);
}

Json OpenAiAnswer::Headed() const {
  const char* const object = request_->endpoint == Endpoint::kCompletions ? "text_completion"
                             : request_->stream                           ? "chat.completion.chunk"
                                                                          : "chat.completion";
  return {{"id", header_.id}, {"object", object}, {"created", header_.created}, {"model", header_.model}};
}

Json OpenAiAnswer::UsageJson() const {
  const v1::SpeculationStats& s = speculation_;
  return {{"prompt_tokens", usage_.prompt_tokens()},
          {"completion_tokens", usage_.completion_tokens()},
          {"total_tokens", usage_.prompt_tokens() + usage_.completion_tokens()},
          {"max_tokens", usage_.max_tokens()},
          {"prompt_tokens_details", {{"cached_tokens", usage_.cached_prompt_tokens()}}},
          {"completion_tokens_details",
           {{"accepted_prediction_tokens", s.accepted_prediction_tokens()},
            {"rejected_prediction_tokens",
             s.prediction_tokens() - std::min(s.prediction_tokens(), s.accepted_prediction_tokens())}}},
          {"speculation",
           {{"drafted", s.drafted()},
            {"accepted", s.accepted()},
            {"accepted_after_end", s.accepted_after_end()},
            {"rounds", s.rounds()},
            {"acceptance_rate", AcceptanceRate(s)},
            {"mean_round_acceptance", s.mean_round_acceptance()},
            {"mean_accepted_length", MeanAcceptedLength(s)},
            {"exact", s.exact()},
            {"schedule", NameOf(ScheduleOf(s))}}}};
}

Json OpenAiAnswer::MetricsJson() const {
  const v1::SpeculationStats& s = speculation_;
  if (request_->prompts.size() > 1 || request_->samples() > 1) return nullptr;
  return {{"speculative_decoding",
           {{"mean_acceptance_length", MeanAcceptedLength(s)},
            {"draft_acceptance_rate", AcceptanceRate(s)},
            {"acceptance_histogram", s.rounds_per_accepted()},
            {"num_spec_steps", s.drafts()},
            {"num_accepted_draft_tokens", s.accepted()},
            {"num_draft_tokens", s.drafted()},
            {"num_spec_tokens", s.drafted_per_position_size()}}}};
}

std::string OpenAiAnswer::ChoiceText(size_t index, const Choice& choice) const {
  const bool chat = request_->endpoint == Endpoint::kChat;
  Json content;
  if (!chat) {
    content = {{"text", choice.text}};
  } else if (!request_->stream) {
    Json text = choice.calls.is_null() ? Json(choice.text) : NullIfEmpty(choice.text);
    content = {{"message", {{"role", "assistant"}, {"content", std::move(text)}, {"refusal", nullptr}}}};
    if (!choice.calls.is_null()) content["message"]["tool_calls"] = choice.calls;
  } else {
    Json delta = Json::object();
    if (!choice.begun) delta["role"] = "assistant";
    if (!choice.begun || !choice.text.empty()) delta["content"] = choice.text;
    if (!choice.calls.is_null()) delta["tool_calls"] = choice.calls;
    content["delta"] = std::move(delta);
  }
  const bool tells = request_->logprobs() && !(request_->stream && choice.logprobs.empty());
  const Json end = {{"finish_reason", NullIfEmpty(choice.finish_reason)},
                    {"stop_reason", NullIfEmpty(choice.stop_string)}};
  // Log-probabilities are JSON already.
  return absl::StrCat(R"({"index":)", index, ",", Members(content), R"(,"logprobs":)",
                      tells ? choice.logprobs.ToJson() : "null", ",", Members(end), "}");
}

std::string OpenAiAnswer::AddAsEvent(size_t prompt, const v1::GenerateResponse& chunk) {
  auto& [index, choice] = AddTo(prompt, chunk);
  if (choice.bytes() == 0 && choice.finish_reason.empty()) return "";
  bytes_ -= choice.bytes();
  const Json usage = {{"prompt_tokens", choice.prompt_tokens},
                      {"completion_tokens", choice.tokens},
                      {"total_tokens", choice.prompt_tokens + choice.tokens}};
  const std::string so_far = request_->usage_so_far    ? absl::StrCat(R"(,"usage":)", DumpJson(usage))
                             : request_->include_usage ? R"(,"usage":null)"
                                                       : "";
  const std::string event =
      absl::StrCat("{", Members(Headed()), R"(,"choices":[)", ChoiceText(index, choice), "]", so_far, "}");
  choice.begun = true;
  choice.text.clear();
  choice.calls = nullptr;
  choice.call_bytes = 0;
  choice.logprobs.Clear();
  return ServerSentEvent(event);
}

std::string OpenAiAnswer::LastEvents() const {
  std::string events;
  if (request_->include_usage || request_->speculation_metrics) {
    Json event = Headed();
    event["choices"] = Json::array();
    event["usage"] = UsageJson();
    if (request_->speculation_metrics) event["metrics"] = MetricsJson();
    events = ServerSentEvent(DumpJson(event));
  }
  return events + DoneEvent();
}

std::vector<std::string> OpenAiAnswer::Body() {
  std::vector<std::string> pieces = {absl::StrCat("{", Members(Headed()), R"(,"choices":[)")};
  // Frees each choice as soon as its JSON is made, so that at most one is in memory twice.
  for (auto choice = choices_.begin(); choice != choices_.end(); choice = choices_.erase(choice)) {
    pieces.push_back(absl::StrCat(pieces.size() > 1 ? "," : "", ChoiceText(choice->first, choice->second)));
  }
  const std::string metrics =
      request_->speculation_metrics ? absl::StrCat(R"(,"metrics":)", DumpJson(MetricsJson())) : "";
  pieces.push_back(absl::StrCat(R"(],"usage":)", DumpJson(UsageJson()), metrics, "}"));
  return pieces;
}

void OpenAiLogprobs::Add(const v1::PositionLogprobs& position) {
  const v1::TokenLogprob& token = position.token();
  if (form_ == Form::kChat) {
    Json item = WithBytes(token);
    Json top = Json::array();
    for (const v1::TokenLogprob& other : position.top()) top.push_back(WithBytes(other));
    item["top_logprobs"] = std::move(top);
    Append(item, &tokens_);
  } else {
    Append(token.text(), &tokens_);
    Append(Finite(token.logprob()), &logprobs_);
    Append(offset_, &offsets_);
    Json top = Json::object();
    // Several tokens may have the same text; the likeliest one counts.
    for (const v1::TokenLogprob& other : position.top()) top.emplace(other.text(), Finite(other.logprob()));
    top.emplace(token.text(), Finite(token.logprob()));
    Append(top, &tops_);
  }
  offset_ += CountCharacters(token.text());
}

void OpenAiLogprobs::AddFirst(const v1::TokenLogprob& token, size_t characters) {
  Append(token.text(), &tokens_);
  Append(nullptr, &logprobs_);
  Append(offset_, &offsets_);
  Append(nullptr, &tops_);
  offset_ += characters;
}

std::string OpenAiLogprobs::ToJson() const {
  if (form_ == Form::kChat) return absl::StrCat(R"({"content":[)", tokens_, R"(],"refusal":null})");
  return absl::StrCat(R"({"tokens":[)", tokens_, R"(],"token_logprobs":[)", logprobs_,
                      R"(],"top_logprobs":[)", tops_, R"(],"text_offset":[)", offsets_, "]}");
}

HttpError ToHttpError(const absl::Status& status, Endpoint endpoint, const std::string& grammar_field) {
  const Kind kind = KindOf(status.code());
  HttpError error{.status = kind.status, .body = ""};
  std::string message(status.message());
  Json param = nullptr;
  if (const std::string field = MetadataOf(status, "field"); !field.empty()) {
    const std::string name = ParamOf(field, endpoint, grammar_field);
    param = name;
    message = MessageAbout(name, status);
  }
  // Retry-After is in whole seconds.
  error.retry_after_seconds =
      static_cast<int>(absl::ToInt64Seconds(absl::Ceil(RetryDelay(status), absl::Seconds(1))));
  const Json body = {
      {"error",
       {{"message", message}, {"type", kind.type}, {"param", param}, {"code", CodeOf(ReasonOf(status))}}}};
  error.body = DumpJson(body);
  return error;
}

}  // namespace outrider
