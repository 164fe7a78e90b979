// Translates requests of OpenAI's API into Outrider's own.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/openai/tool_fields.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

enum class Endpoint { kCompletions, kChat };

struct OpenAiRequest {
  Endpoint endpoint = Endpoint::kCompletions;
  std::string model;                         // empty: not named
  v1::GenerateRequest common;                // all but the prompt
  std::vector<v1::GenerateRequest> prompts;  // at least one, with only the prompt set
  std::string grammar_field;                 // the field that has the grammar; empty: none
  ToolUse tools = {};                        // the tools that the answer may call
  bool echo = false;                         // the answer begins with the prompt
  bool stream = false;
  bool include_usage = false;        // at the end of a stream
  bool usage_so_far = false;         // in each event of a stream
  bool speculation_metrics = false;  // report speculation in vLLM's form too

  size_t samples() const { return common.has_n() ? common.n() : 1; }
  bool logprobs() const { return common.logprobs().has_top(); }
};

// Parses the body of a POST. Translates or refuses fields of OpenAI's API and of vLLM's extensions that would
// change the answer, and ignores others, as OpenAI does. INVALID_ARGUMENT, naming the client's field, if one
// is refused or of the wrong type; with reason UNSUPPORTED_PARAMETER if the field is not supported.
absl::StatusOr<OpenAiRequest> ParseOpenAiRequest(Endpoint endpoint, const std::string& body);

}  // namespace outrider
