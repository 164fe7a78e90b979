// Reads config.json of the Llama family ("model_type": "llama").
#pragma once

#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/decoder/field_reader.h"

namespace outrider {

// Refuses, naming the field, what DecoderSpec cannot express: another architecture or activation, biases, an
// unknown kind of rope. The result is meaningless if `fields` has an error.
DecoderSpec ReadLlama(FieldReader& fields);

}  // namespace outrider
