// Gemma 2 and Gemma 3 (text).
#pragma once

#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/decoder/field_reader.h"

namespace outrider {

// Reads a config.json of model_type "gemma2" or "gemma3_text".
DecoderSpec ReadGemma2(FieldReader& fields);
DecoderSpec ReadGemma3(FieldReader& fields);

}  // namespace outrider
