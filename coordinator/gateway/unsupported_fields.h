// Fields of OpenAI's API, and of vLLM's extensions, that ask for an answer that cannot be given.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "coordinator/gateway/openai_request.h"

namespace outrider {

// INVALID_ARGUMENT, reason UNSUPPORTED_PARAMETER, naming the first of them that `body` uses. A value that
// asks for what happens anyway is fine.
absl::Status RefuseUnsupported(Endpoint endpoint, const nlohmann::json& body);

// Null, false, an empty text, list or object: as if the field were not there.
bool IsNothing(const nlohmann::json& value);

}  // namespace outrider
