// Errors as OpenAI's API writes them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "coordinator/openai/openai_request.h"

namespace outrider {

struct HttpError {
  int status;                   // of HTTP, from 400 on
  std::string body;             // {"error": {"message", "type", "param", "code"}}
  int retry_after_seconds = 0;  // 0: unknown
};

// `status` is not OK. A field goes by the name that it has at `endpoint`.
HttpError ToHttpError(const absl::Status& status, Endpoint endpoint);

}  // namespace outrider
