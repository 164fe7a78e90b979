#include "coordinator/gateway/openai_logprobs.h"

#include <algorithm>
#include <utility>

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinity; vLLM's stand-in for it.
constexpr double kLeast = -9999.0;

double Finite(double logprob) { return std::max(logprob, kLeast); }

Json WithBytes(const v1::TokenLogprob& token) {
  Json bytes = Json::array();
  for (unsigned char byte : token.text()) bytes.push_back(byte);
  return {{"token", token.text()}, {"logprob", Finite(token.logprob())}, {"bytes", std::move(bytes)}};
}

}  // namespace

size_t CountCharacters(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

Json OpenAiLogprobs::Completions() const {
  Json tokens = Json::array(), logprobs = Json::array(), tops = Json::array(), offsets = Json::array();
  size_t offset = offset_;
  for (const v1::PositionLogprobs& position : positions_) {
    const v1::TokenLogprob& token = position.token();
    tokens.push_back(token.text());
    logprobs.push_back(Finite(token.logprob()));
    offsets.push_back(offset);
    offset += CountCharacters(token.text());
    Json top = Json::object();
    // Tokens may share a text; the likeliest stands for it.
    for (const v1::TokenLogprob& other : position.top()) top.emplace(other.text(), Finite(other.logprob()));
    top.emplace(token.text(), Finite(token.logprob()));
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json OpenAiLogprobs::Chat() const {
  Json content = Json::array();
  for (const v1::PositionLogprobs& position : positions_) {
    Json token = WithBytes(position.token());
    Json top = Json::array();
    for (const v1::TokenLogprob& other : position.top()) top.push_back(WithBytes(other));
    token["top_logprobs"] = std::move(top);
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

void OpenAiLogprobs::Clear() {
  for (const v1::PositionLogprobs& position : positions_) offset_ += CountCharacters(position.token().text());
  positions_.clear();
}

}  // namespace outrider
