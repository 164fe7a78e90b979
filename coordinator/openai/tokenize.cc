#include "coordinator/openai/tokenize.h"

#include <nlohmann/json.hpp>

#include "coordinator/openai/chat_fields.h"
#include "coordinator/openai/json_fields.h"
#include "coordinator/openai/tool_fields.h"

namespace outrider {

absl::StatusOr<TokenizeFields> ParseTokenizeFields(const std::string& body) {
  const nlohmann::json json = OUTRIDER_TRY(ParseBody(body));
  JsonFields fields(json, body);
  TokenizeFields result;
  result.model = fields.String("model").value_or("");
  result.request.set_with_texts(fields.Bool("return_token_strs").value_or(false));
  const bool is_chat = fields.Find("messages") != nullptr;
  const auto adds_special = fields.Bool("add_special_tokens");
  if (is_chat) {
    // A chat template writes special tokens itself.
    if (adds_special.value_or(false)) fields.Refuse("add_special_tokens", "false with messages", "true");
    v1::ChatPrompt* const chat = result.request.mutable_chat();
    ParseChatFields(fields, chat);
    ParseToolFields(fields, chat);
  } else if (const auto prompt = fields.String("prompt")) {
    result.request.set_text(*prompt);
    result.request.set_without_special_tokens(!adds_special.value_or(true));
  } else {
    fields.Refuse("prompt", "a string, or messages instead", "missing");
  }
  OUTRIDER_TRY(fields.status());
  return result;
}

absl::StatusOr<DetokenizeFields> ParseDetokenizeFields(const std::string& body) {
  const nlohmann::json json = OUTRIDER_TRY(ParseBody(body));
  JsonFields fields(json, body);
  DetokenizeFields result;
  result.model = fields.String("model").value_or("");
  const auto ids = fields.TokenIds("tokens");
  result.request.mutable_ids()->Add(ids.begin(), ids.end());
  if (fields.Find("tokens") == nullptr) fields.Refuse("tokens", "a list of token ids", "missing");
  OUTRIDER_TRY(fields.status());
  return result;
}

std::string TokenizeBody(const TokenizeFields& fields, const v1::TokenizeResponse& response,
                         uint32_t max_context) {
  OrderedJson json = {
      {"count", response.ids_size()}, {"max_model_len", max_context}, {"tokens", response.ids()}};
  json["token_strs"] = fields.request.with_texts() ? OrderedJson(response.texts()) : OrderedJson(nullptr);
  return DumpJson(json);
}

std::string DetokenizeBody(const v1::DetokenizeResponse& response) {
  return DumpJson(OrderedJson{{"prompt", response.text()}});
}

}  // namespace outrider
