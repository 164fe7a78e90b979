// config.json of the Llama family: "model_type": "llama".
#pragma once

#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/decoder/field_reader.h"

namespace outrider {

// Refuses, by the field, whatever would make it another model than DecoderSpec describes: another
// architecture or activation, biases, an unknown kind of rope. Where `fields` has an error the result means
// nothing.
DecoderSpec ReadLlama(FieldReader& fields);

}  // namespace outrider
