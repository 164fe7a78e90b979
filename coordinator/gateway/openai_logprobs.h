// Log-probabilities in the two forms that OpenAI's API has for them.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "outrider/v1/sequence.pb.h"

namespace outrider {

// Of the tokens of one choice, in order. Offsets count characters of the choice's text.
class OpenAiLogprobs {
 public:
  void Add(const v1::PositionLogprobs& position) { positions_.push_back(position); }
  // Text before the next token that has none of its own here.
  void Skip(size_t characters) { offset_ += characters; }
  bool empty() const { return positions_.empty(); }

  // Completions: four lists; a token is named by its text.
  nlohmann::ordered_json Completions() const;
  // Chat: a list of objects.
  nlohmann::ordered_json Chat() const;

  // Those told so far are not told again.
  void Clear();

 private:
  std::vector<v1::PositionLogprobs> positions_;
  size_t offset_ = 0;  // of positions_[0]
};

// Characters, that is code points, of UTF-8.
size_t CountCharacters(const std::string& text);

}  // namespace outrider
