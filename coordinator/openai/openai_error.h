// Errors as OpenAI's API writes them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "coordinator/openai/openai_request.h"

namespace outrider {

struct HttpError {
  int status;                   // of HTTP, from 400 on
  std::string body;             // {"error": {"message", "type", "param", "code"}}
  int retry_after_seconds = 0;  // 0: nobody knows
};

// `status` is not OK. What it says of a field is said by the name that the field has at `endpoint`.
HttpError ToHttpError(const absl::Status& status, Endpoint endpoint);

}  // namespace outrider
