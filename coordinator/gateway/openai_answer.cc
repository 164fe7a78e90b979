#include "coordinator/gateway/openai_answer.h"

#include <algorithm>
#include <utility>

#include "common/rpc/names.h"
#include "coordinator/rounds/speculation_stats.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json NullIfEmpty(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

}  // namespace

std::string ServerSentEvent(const std::string& data) { return "data: " + data + "\n\n"; }
std::string DoneEvent() { return ServerSentEvent("[DONE]"); }

OpenAiAnswer::OpenAiAnswer(const OpenAiRequest* request, AnswerHeader header)
    : request_(request), header_(std::move(header)) {
  speculation_.set_exact(true);
}

OpenAiAnswer::Choice& OpenAiAnswer::AddTo(size_t index, size_t prompt, const v1::GenerateResponse& chunk) {
  if (!chunk.prompt_logprobs().empty()) prompt_logprobs_[prompt].MergeFrom(chunk.prompt_logprobs());
  Choice& choice = choices_[index];
  // Chunks without a token are the beginning of what is to be known of the prompt.
  if (request_->echo && !choice.echoed && (!chunk.tokens().empty() || chunk.has_finish())) {
    BeginWithPrompt(prompt, choice);
  }
  choice.text += chunk.text();
  for (const v1::GeneratedToken& token : chunk.tokens()) {
    if (token.has_logprobs()) choice.logprobs.Add(token.logprobs());
  }
  if (chunk.has_finish()) {
    choice.finish_reason = NameOf(chunk.finish().reason());
    choice.stop_string = chunk.finish().stop_string();
    Count(chunk.finish(), chunk.sample() == 0);
  }
  return choice;
}

void OpenAiAnswer::BeginWithPrompt(size_t prompt, Choice& choice) const {
  choice.echoed = true;
  choice.text = request_->prompts[prompt].text();
  if (!request_->logprobs()) return;
  // All of its tokens but the first, which nothing comes before; that is a BOS, or else some text.
  size_t skipped = CountCharacters(choice.text);
  const auto found = prompt_logprobs_.find(prompt);
  if (found == prompt_logprobs_.end()) return choice.logprobs.Skip(skipped);
  for (const v1::PositionLogprobs& position : found->second) {
    skipped -= std::min(skipped, CountCharacters(position.token().text()));
    choice.logprobs.Add(position);
  }
  choice.logprobs.Skip(skipped);
}

void OpenAiAnswer::Count(const v1::Finish& finish, bool first_sample) {
  const v1::Usage& usage = finish.usage();
  if (first_sample) {
    usage_.set_prompt_tokens(usage_.prompt_tokens() + usage.prompt_tokens());
    usage_.set_cached_prompt_tokens(usage_.cached_prompt_tokens() + usage.cached_prompt_tokens());
  }
  usage_.set_completion_tokens(usage_.completion_tokens() + usage.completion_tokens());
  AddCounts(finish.speculation(), &speculation_);
}

Json OpenAiAnswer::Headed(const char* object) const {
  return {{"id", header_.id}, {"object", object}, {"created", header_.created}, {"model", header_.model}};
}

Json OpenAiAnswer::UsageJson() const {
  const v1::SpeculationStats& s = speculation_;
  return {{"prompt_tokens", usage_.prompt_tokens()},
          {"completion_tokens", usage_.completion_tokens()},
          {"total_tokens", usage_.prompt_tokens() + usage_.completion_tokens()},
          {"prompt_tokens_details", {{"cached_tokens", usage_.cached_prompt_tokens()}}},
          {"speculation",
           {{"drafted", s.drafted()},
            {"accepted", s.accepted()},
            {"rounds", s.rounds()},
            {"acceptance_rate", AcceptanceRate(s)},
            {"mean_accepted_length", MeanAcceptedLength(s)},
            {"exact", s.exact()},
            {"schedule", NameOf(ScheduleOf(s))}}}};
}

Json OpenAiAnswer::ChoiceJson(size_t index, const Choice& choice) const {
  const bool chat = request_->endpoint == Endpoint::kChat;
  Json json = {{"index", index}};
  if (chat) {
    json["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
  } else {
    json["text"] = choice.text;
  }
  json["logprobs"] = nullptr;
  if (request_->logprobs()) json["logprobs"] = chat ? choice.logprobs.Chat() : choice.logprobs.Completions();
  json["finish_reason"] = NullIfEmpty(choice.finish_reason);
  json["stop_reason"] = NullIfEmpty(choice.stop_string);
  return json;
}

Json OpenAiAnswer::EventJson(size_t index, Choice& choice) const {
  const bool chat = request_->endpoint == Endpoint::kChat;
  Json of_choice = ChoiceJson(index, choice);
  if (chat) {
    Json delta = Json::object();
    if (!choice.begun) delta["role"] = "assistant";
    if (!choice.begun || !choice.text.empty()) delta["content"] = choice.text;
    of_choice.erase("message");
    of_choice["delta"] = std::move(delta);
  }
  if (choice.logprobs.empty()) of_choice["logprobs"] = nullptr;
  choice.begun = true;
  choice.text.clear();
  choice.logprobs.Clear();
  Json event = Headed(chat ? "chat.completion.chunk" : "text_completion");
  event["choices"] = Json::array({std::move(of_choice)});
  if (request_->include_usage) event["usage"] = nullptr;
  return event;
}

std::string OpenAiAnswer::AddAsEvent(size_t prompt, const v1::GenerateResponse& chunk) {
  const size_t index = IndexOf(prompt, chunk);
  Choice& choice = AddTo(index, prompt, chunk);
  if (choice.text.empty() && choice.logprobs.empty() && choice.finish_reason.empty()) return "";
  return ServerSentEvent(Dump(EventJson(index, choice)));
}

std::string OpenAiAnswer::LastEvents() const {
  std::string events;
  if (request_->include_usage) {
    Json event = Headed(request_->endpoint == Endpoint::kChat ? "chat.completion.chunk" : "text_completion");
    event["choices"] = Json::array();
    event["usage"] = UsageJson();
    events = ServerSentEvent(Dump(event));
  }
  return events + DoneEvent();
}

std::string OpenAiAnswer::Body() const {
  Json answer = Headed(request_->endpoint == Endpoint::kChat ? "chat.completion" : "text_completion");
  answer["choices"] = Json::array();
  for (const auto& [index, choice] : choices_) answer["choices"].push_back(ChoiceJson(index, choice));
  answer["usage"] = UsageJson();
  return Dump(answer);
}

}  // namespace outrider
