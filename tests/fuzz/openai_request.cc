// Parses the body of a POST to OpenAI's API.
#include "coordinator/openai/openai_request.h"
#include "tests/fuzz/target.h"

namespace outrider {

void FuzzTarget(std::string_view input) {
  for (const Endpoint endpoint : {Endpoint::kCompletions, Endpoint::kChat}) {
    const auto request = ParseOpenAiRequest(endpoint, std::string(input));
    if (request.ok()) {
      Require(!request->prompts.empty(), "a request has a prompt");
      Require(request->grammar_field.empty() != request->common.sampling().has_grammar(),
              "a grammar comes with a field");
      continue;
    }
    const absl::StatusCode code = request.status().code();
    Require(code == absl::StatusCode::kInvalidArgument || code == absl::StatusCode::kUnimplemented,
            "what is wrong is the client's");
  }
}

}  // namespace outrider
