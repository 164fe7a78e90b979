// The fields that constrain an answer to a grammar: OpenAI's response_format, vLLM's structured_outputs and
// guided_*, and llama-server's grammar and json_schema.
#pragma once

#include <string>

#include "coordinator/openai/json_fields.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// Parses the grammar into `sampling`. Returns the name of its field; empty if there is none. Refuses a second
// grammar.
std::string ParseGrammarFields(JsonFields& fields, v1::SamplingParams* sampling);

}  // namespace outrider
