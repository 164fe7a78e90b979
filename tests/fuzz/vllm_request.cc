// Parses a request of vLLM's protocol as it comes from the network, and translates it.
#include "coordinator/vllm/vllm_request.h"

#include "common/rpc/parse_message.h"
#include "common/spec/status.h"
#include "tests/fuzz/target.h"

namespace outrider {

void FuzzTarget(std::string_view input) {
  const grpc::Slice slice(input.data(), input.size());
  vllm::GenerateRequest message;
  if (!ParseMessage(grpc::ByteBuffer(&slice, 1), &message).ok()) return;
  for (const bool streams : {false, true}) {
    const auto request =
        ParseVllmRequest(message, streams, {.model_has_temperature = false, .max_samples = 4});
    if (!request.ok()) {
      Require(request.status().code() == absl::StatusCode::kInvalidArgument, "what is wrong is the client's");
      Require(!MetadataOf(request.status(), "field").empty(), "it is named");
      continue;
    }
    Require(request->n() <= (streams ? 4U : 1U), "there are as many texts as one call may have");
    Require(request->stop().max_tokens() > 0, "an answer has a token");
    Require(message.truncate_prompt_tokens() == 0 ||
                static_cast<uint32_t>(request->tokens().ids_size()) <= message.truncate_prompt_tokens(),
            "a prompt is cut");
  }
}

}  // namespace outrider
