// The fields that hold an answer to a grammar: OpenAI's response_format, vLLM's structured_outputs and
// guided_*, and llama-server's grammar and json_schema.
#pragma once

#include <string>

#include "coordinator/openai/json_fields.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// Returns the name of the field that has a grammar, which then is in `sampling`; empty: none has. A second
// one is refused.
std::string ParseGrammarFields(JsonFields& fields, v1::SamplingParams* sampling);

}  // namespace outrider
