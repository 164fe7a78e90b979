// Mistral.
#pragma once

#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/decoder/field_reader.h"

namespace outrider {

// Reads a config.json of model_type "mistral".
DecoderSpec ReadMistral(FieldReader& fields);

}  // namespace outrider
