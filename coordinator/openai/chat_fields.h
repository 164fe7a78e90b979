// The fields of a request that make a conversation.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/openai/json_fields.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// Null, false, an empty text, list or object: as if the field were not there.
template <typename Json>
bool IsNothing(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json("") ||
         (value.is_structured() && value.empty());
}

// OpenAI's `messages`, and the extensions of vLLM and transformers for the template. Errors go to
// `fields`.
void ParseChatFields(JsonFields& fields, v1::ChatPrompt* chat);

// OpenAI's predicted output.
void ParsePrediction(JsonFields& fields, v1::GenerateRequest* request);

}  // namespace outrider
