// What a client of OpenAI's API asks for, in Outrider's own terms.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

enum class Endpoint { kCompletions, kChat };

struct OpenAiRequest {
  Endpoint endpoint = Endpoint::kCompletions;
  std::string model;                         // empty: not named
  v1::GenerateRequest common;                // all but the prompt
  std::vector<v1::GenerateRequest> prompts;  // at least one, with nothing but that
  bool echo = false;                         // the answer begins with the prompt
  bool stream = false;
  bool include_usage = false;  // of a stream

  size_t samples() const { return common.has_n() ? common.n() : 1; }
  bool logprobs() const { return common.logprobs().has_top(); }
};

// The body of a POST. Fields that OpenAI's API or vLLM's extensions of it know and that would change the
// answer are translated or refused; others are ignored, as OpenAI does. INVALID_ARGUMENT naming the field, by
// its name there, for those that are refused or of the wrong kind; reason UNSUPPORTED_PARAMETER where no
// value would do. Whether values are in range is for the service to say.
absl::StatusOr<OpenAiRequest> ParseOpenAiRequest(Endpoint endpoint, const std::string& body);

}  // namespace outrider
