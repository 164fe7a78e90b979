// Translates requests of vLLM's gRPC protocol into Outrider's own.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "outrider/v1/inference.pb.h"
#include "vllm/inference.pb.h"

namespace outrider {

struct VllmDefaults {
  bool model_has_temperature = false;  // for requests that set none; if false, they get 0
  uint32_t max_samples = 1;            // per request
};

// Translates a request of GenerateStream, if `streams`, or of Generate, which returns one text. Errors are
// INVALID_ARGUMENT, naming vLLM's field, with reason UNSUPPORTED_PARAMETER for unsupported options that would
// change the answer, or whose cache it uses. The service checks everything else.
absl::StatusOr<v1::GenerateRequest> ParseVllmRequest(const vllm::GenerateRequest& request, bool streams,
                                                     const VllmDefaults& defaults);

// Whether the prompt is text whose tokens are needed here, to report or to truncate them.
bool NeedsTokens(const vllm::GenerateRequest& request);
// Sets the prompt to `ids`, the tokens of the request's prompt, truncated as the request asks.
void SetPromptTokens(const google::protobuf::RepeatedField<uint32_t>& ids,
                     const vllm::GenerateRequest& request, v1::GenerateRequest* translated);

// Returns an error of the service about a translated request, with vLLM's name for the field.
absl::Status WithVllmField(const absl::Status& status, const vllm::GenerateRequest& request);

}  // namespace outrider
