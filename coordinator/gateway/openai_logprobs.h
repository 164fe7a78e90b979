// Log-probabilities in the two forms that OpenAI's API has for them.
#pragma once

#include <cstddef>
#include <string>

#include "outrider/v1/sequence.pb.h"

namespace outrider {

// Of the tokens of one choice, in order, as the JSON that they are sent as: a large answer is then no larger
// here than on its way. Offsets count characters of the choice's text.
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

// Characters, that is code points, of UTF-8.
size_t CountCharacters(const std::string& text);

}  // namespace outrider
