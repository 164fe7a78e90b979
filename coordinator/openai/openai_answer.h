// An answer in the form of OpenAI's API: whole, as the events of a stream, or an error.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/tool_calls.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// The log-probabilities of one choice's tokens, in order, kept as the JSON that is sent: a large answer takes
// no more memory here than bytes on the wire. Offsets count characters of the choice's text.
class OpenAiLogprobs {
 public:
  // Completions: four lists; a token is named by its text. Chat: a list of objects.
  enum class Form { kCompletions, kChat };

  explicit OpenAiLogprobs(Form form) : form_(form) {}

  void Add(const v1::PositionLogprobs& position);
  // Adds a prompt's first token, `characters` of which are in the choice's text. For completions only.
  void AddFirst(const v1::TokenLogprob& token, size_t characters);
  bool empty() const { return tokens_.empty(); }
  size_t bytes() const { return tokens_.size() + logprobs_.size() + tops_.size() + offsets_.size(); }

  std::string ToJson() const;

  void Clear() {
    for (std::string* list : {&tokens_, &logprobs_, &tops_, &offsets_}) list->clear();
  }

 private:
  const Form form_;
  // The items of each list, joined by commas; a chat uses only the first.
  std::string tokens_, logprobs_, tops_, offsets_;
  size_t offset_ = 0;  // of the next token
};

struct AnswerHeader {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  v1::ToolFormat tool_format = v1::TOOL_FORMAT_UNSPECIFIED;
};

// Takes the chunks of all prompts and samples; choice p * n + s is sample s of prompt p. One thread.
class OpenAiAnswer {
 public:
  // `request` must outlive this.
  OpenAiAnswer(const OpenAiRequest* request, AnswerHeader header);

  // For a whole answer: call Add with each chunk, then Body once, which returns it in pieces.
  void Add(size_t prompt, const v1::GenerateResponse& chunk) { AddTo(prompt, chunk); }
  std::vector<std::string> Body();
  // The bytes held for Body, about as many as it returns.
  size_t bytes() const { return bytes_; }

  // For a stream: returns the server-sent event for a chunk, perhaps empty. LastEvents closes the stream.
  std::string AddAsEvent(size_t prompt, const v1::GenerateResponse& chunk);
  std::string LastEvents() const;

 private:
  struct Choice {
    explicit Choice(OpenAiLogprobs::Form form) : logprobs(form) {}
    size_t bytes() const { return text.size() + call_bytes + logprobs.bytes(); }

    std::string text;  // since the last event, or all of it in a whole answer
    OpenAiLogprobs logprobs;
    std::optional<ToolCallParser> parser;    // for a request with tools
    nlohmann::ordered_json calls = nullptr;  // `tool_calls`, as `text` since the last event; null: none
    size_t call_bytes = 0;
    uint32_t prompt_tokens = 0, tokens = 0;  // so far
    bool echoed = false;                     // the prompt has been put first
    bool begun = false;                      // an event has been sent
    std::string finish_reason;               // empty: not finished
    std::string stop_string;                 // empty: none matched
  };

  struct Echo {
    v1::EchoedPrompt prompt;
    google::protobuf::RepeatedPtrField<v1::PositionLogprobs> positions;  // from the prompt's first chunks
    size_t bytes = 0;
    size_t choices = 0;  // that begin with the prompt already
  };

  // Adds the chunk to its choice. Returns the choice and its index.
  std::pair<const size_t, Choice>& AddTo(size_t prompt, const v1::GenerateResponse& chunk);
  // An object with the header's fields: an event of a stream, or the whole answer.
  nlohmann::ordered_json Headed() const;
  // Adds text of the answer, and at its end the text that the parser has held back.
  void AddText(Choice& choice, const std::string& text, bool is_end) const;
  void AddCall(Choice& choice, const ToolCallPart& part) const;
  // Begins a choice with its prompt, for an answer that echoes it.
  void BeginWithPrompt(size_t prompt, Choice& choice);
  std::string ChoiceText(size_t index, const Choice& choice) const;
  nlohmann::ordered_json UsageJson() const;
  // vLLM's `metrics`, if the request is for one continuation; null for other requests.
  nlohmann::ordered_json MetricsJson() const;
  void Count(const v1::Finish& finish, bool first_sample);

  const OpenAiRequest* const request_;
  const AnswerHeader header_;
  std::map<size_t, Choice> choices_;
  // Echoed prompts, each kept until all of its choices begin with it.
  std::map<size_t, Echo> echoes_;
  size_t bytes_ = 0;
  v1::Usage usage_;
  v1::SpeculationStats speculation_;
};

// A server-sent event with `data`, which must not contain a line end.
std::string ServerSentEvent(const std::string& data);
std::string DoneEvent();

struct HttpError {
  int status;                   // of HTTP, 400 or above
  std::string body;             // {"error": {"message", "type", "param", "code"}}
  int retry_after_seconds = 0;  // 0: unknown
};

// `status` must not be OK. The error names fields as `endpoint` does, and the grammar as `grammar_field`, the
// request's field that has the grammar, if there is one.
HttpError ToHttpError(const absl::Status& status, Endpoint endpoint, const std::string& grammar_field = "");

}  // namespace outrider
