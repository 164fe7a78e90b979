// vLLM's /tokenize and /detokenize.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

struct TokenizeFields {
  std::string model;  // empty: not named
  v1::TokenizeRequest request;
};

struct DetokenizeFields {
  std::string model;
  v1::DetokenizeRequest request;
};

// Parse the bodies. INVALID_ARGUMENT, naming the field.
absl::StatusOr<TokenizeFields> ParseTokenizeFields(const std::string& body);
absl::StatusOr<DetokenizeFields> ParseDetokenizeFields(const std::string& body);

// The bodies of the answers.
std::string TokenizeBody(const TokenizeFields& fields, const v1::TokenizeResponse& response,
                         uint32_t max_context);
std::string DetokenizeBody(const v1::DetokenizeResponse& response);

}  // namespace outrider
