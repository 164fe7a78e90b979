// An answer in the form of OpenAI's API: whole, or as the events of a stream.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coordinator/openai/openai_request.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// The log-probabilities of one choice's tokens, in order, as the JSON that is sent, so that a large answer is
// no larger here than on its way. Offsets count characters of the choice's text.
class OpenAiLogprobs {
 public:
  // Completions: four lists; a token is named by its text. Chat: a list of objects.
  enum class Form { kCompletions, kChat };

  explicit OpenAiLogprobs(Form form) : form_(form) {}

  void Add(const v1::PositionLogprobs& position);
  // A prompt's first token, of which so many characters are in the choice's text. Only of completions.
  void AddFirst(const v1::TokenLogprob& token, size_t characters);
  bool empty() const { return tokens_.empty(); }
  size_t bytes() const { return tokens_.size() + logprobs_.size() + tops_.size() + offsets_.size(); }

  std::string ToJson() const;

  // Those told so far are not told again.
  void Clear();

 private:
  const Form form_;
  // The items of each list, with commas between them; of a chat only the first.
  std::string tokens_, logprobs_, tops_, offsets_;
  size_t offset_ = 0;  // of the next token
};

// How an answer is headed.
struct AnswerHeader {
  std::string id;
  int64_t created;  // seconds since 1970
  std::string model;
};

// One thread. Takes the chunks of all prompts and samples; choice number p * n + s is sample s of prompt p.
class OpenAiAnswer {
 public:
  // `request` must outlive this.
  OpenAiAnswer(const OpenAiRequest* request, AnswerHeader header);

  // Either this with each chunk, and at the end the whole answer, once, in pieces.
  void Add(size_t prompt, const v1::GenerateResponse& chunk) { AddTo(IndexOf(prompt, chunk), prompt, chunk); }
  std::vector<std::string> Body();
  // What it holds for that, about as many as Body has.
  size_t bytes() const { return bytes_; }

  // Or this with each chunk, which gives the server-sent event that says it, perhaps none, and at the end
  // those that close the stream.
  std::string AddAsEvent(size_t prompt, const v1::GenerateResponse& chunk);
  std::string LastEvents() const;

 private:
  struct Choice {
    explicit Choice(OpenAiLogprobs::Form form) : logprobs(form) {}
    size_t bytes() const { return text.size() + logprobs.bytes(); }

    std::string text;  // since the last event; all of it if there are none
    OpenAiLogprobs logprobs;
    bool echoed = false;        // it begins with the prompt
    bool begun = false;         // an event of it was sent
    std::string finish_reason;  // empty: it goes on
    std::string stop_string;    // empty: none ended it
  };

  struct Echo {
    v1::EchoedPrompt prompt;
    google::protobuf::RepeatedPtrField<v1::PositionLogprobs> positions;  // what its first chunks said
    size_t bytes = 0;
    size_t choices = 0;  // that have begun
  };

  size_t IndexOf(size_t prompt, const v1::GenerateResponse& chunk) const {
    return prompt * request_->samples() + chunk.sample();
  }
  Choice& AddTo(size_t index, size_t prompt, const v1::GenerateResponse& chunk);
  // An object with the header's fields: an event of a stream, or the whole answer.
  nlohmann::ordered_json Headed() const;
  Choice& ChoiceAt(size_t index);
  // The prompt of an answer that echoes it, as the beginning of a choice.
  void BeginWithPrompt(size_t prompt, Choice& choice);
  // A choice, of an event or of a whole answer.
  std::string ChoiceText(size_t index, const Choice& choice) const;
  std::string Event(size_t index, Choice& choice) const;
  nlohmann::ordered_json UsageJson() const;
  void Count(const v1::Finish& finish, bool first_sample);

  const OpenAiRequest* const request_;
  const AnswerHeader header_;
  std::map<size_t, Choice> choices_;
  // Of prompts that are echoed, until all of their choices begin with them.
  std::map<size_t, Echo> echoes_;
  size_t bytes_ = 0;
  v1::Usage usage_;
  v1::SpeculationStats speculation_;
};

// An event of a stream that says `data`, which has no line end.
std::string ServerSentEvent(const std::string& data);
// The event that ends every stream.
std::string DoneEvent();

}  // namespace outrider
