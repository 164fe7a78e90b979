#include "common/engine/decoder/mistral.h"

#include "common/engine/decoder/family_fields.h"

namespace outrider {

DecoderSpec ReadMistral(FieldReader& fields) {
  DecoderSpec spec;
  RequireArchitecture(fields, "MistralForCausalLM");
  RequireValue(fields, "hidden_act", "silu");
  ReadSizes(fields, spec);
  ReadRope(fields, spec);
  ReadSlidingLayers(fields, spec, [](int /*layer*/) { return true; });
  return spec;
}

}  // namespace outrider
