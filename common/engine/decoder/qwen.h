// Qwen2, Qwen2.5 and Qwen3.
#pragma once

#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/decoder/field_reader.h"

namespace outrider {

// Reads a config.json of model_type "qwen2", which is Qwen2.5's too, or "qwen3".
DecoderSpec ReadQwen2(FieldReader& fields);
DecoderSpec ReadQwen3(FieldReader& fields);

}  // namespace outrider
