#include "common/engine/decoder/llama.h"

#include "common/engine/decoder/family_fields.h"

namespace outrider {

DecoderSpec ReadLlama(FieldReader& fields) {
  DecoderSpec spec;
  RequireArchitecture(fields, "LlamaForCausalLM");
  RequireValue(fields, "hidden_act", "silu");
  for (const char* name : {"attention_bias", "mlp_bias"}) {
    RefuseTrue(fields, name, "biases are not supported");
  }
  ReadSizes(fields, spec);
  ReadRope(fields, spec);
  return spec;
}

}  // namespace outrider
