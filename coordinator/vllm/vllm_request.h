// What a client of vLLM's gRPC protocol asks for, in Outrider's own terms.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "outrider/v1/inference.pb.h"
#include "vllm/inference.pb.h"

namespace outrider {

struct VllmDefaults {
  bool model_has_temperature = false;  // for requests that have none; otherwise that is 0
  uint32_t max_samples = 1;            // of one request
};

// Translates a request of GenerateStream, or of Generate, which has one text. INVALID_ARGUMENT naming vLLM's
// field, with reason UNSUPPORTED_PARAMETER for what would change the answer, or whose cache it uses, and
// cannot be had. All else is left to the service to refuse.
absl::StatusOr<v1::GenerateRequest> ParseVllmRequest(const vllm::GenerateRequest& request, bool streams,
                                                     const VllmDefaults& defaults);

// Whether the prompt is text whose tokens are needed here, to report or to cut them.
bool NeedsTokens(const vllm::GenerateRequest& request);
// Makes `ids`, which are the text's, or else those in the request, the prompt, cut as the request says.
void SetPromptTokens(const google::protobuf::RepeatedField<uint32_t>& ids,
                     const vllm::GenerateRequest& request, v1::GenerateRequest* translated);

// An error of the service about a translated request, with the field by vLLM's name.
absl::Status WithVllmField(const absl::Status& status, const vllm::GenerateRequest& request);

}  // namespace outrider
