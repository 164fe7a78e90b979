// The fields of a request that make a conversation.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/openai/json_fields.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// Whether the value counts as absent: null, false, or an empty string, list or object.
template <typename Json>
bool CountsAsAbsent(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json("") ||
         (value.is_structured() && value.empty());
}

// Parses OpenAI's `messages`, and the template's options that vLLM and transformers add. Errors go to
// `fields`.
void ParseChatFields(JsonFields& fields, v1::ChatPrompt* chat);

// Parses OpenAI's `prediction`. Errors go to `fields`.
void ParsePrediction(JsonFields& fields, v1::GenerateRequest* request);

}  // namespace outrider
