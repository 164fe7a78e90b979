#include "coordinator/gateway/openai_logprobs.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/text/json.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinity; vLLM's stand-in for it.
constexpr double kLeast = -9999.0;

double Finite(double logprob) { return std::max(logprob, kLeast); }

Json WithBytes(const v1::TokenLogprob& token) {
  Json bytes = Json::array();
  for (unsigned char byte : token.bytes().empty() ? token.text() : token.bytes()) bytes.push_back(byte);
  return {{"token", token.text()}, {"logprob", Finite(token.logprob())}, {"bytes", std::move(bytes)}};
}

void Append(const Json& item, std::string* list) {
  absl::StrAppend(list, list->empty() ? "" : ",", DumpJson(item));
}

}  // namespace

size_t CountCharacters(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
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
    // Tokens may share a text; the likeliest stands for it.
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

void OpenAiLogprobs::Clear() {
  for (std::string* list : {&tokens_, &logprobs_, &tops_, &offsets_}) list->clear();
}

}  // namespace outrider
