// Fields of config.json that families have in common.
#pragma once

#include <algorithm>

#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/decoder/field_reader.h"

namespace outrider {

// Fails unless the field `architectures`, if there is one, names this class alone.
void RequireArchitecture(FieldReader& fields, const char* name);
// Fails unless the string field, if there is one, has this value.
void RequireValue(FieldReader& fields, const char* field, const char* value);
// Fails if the field is true.
void RefuseTrue(FieldReader& fields, const char* field, const char* why);

// Sizes, the norms' epsilon, and whether embedding and head are one; `tied` if the field is absent.
void ReadSizes(FieldReader& fields, DecoderSpec& spec, bool tied = false);
// Both spellings: `rope_theta` beside `rope_scaling`, or everything inside `rope_parameters` (transformers
// 5), there for each type of layer if they differ.
void ReadRope(FieldReader& fields, DecoderSpec& spec);
// `sliding_window`, 4096 if it is absent and none if it is null, and which layers slide: `layer_types` if it
// is there, else slides(layer).
template <class Slides>
void ReadSlidingLayers(FieldReader& fields, DecoderSpec& spec, Slides slides);

namespace family_internal {
// The types of the layers, if the field is there.
std::vector<bool> ReadLayerTypes(FieldReader& fields, int layers);
}  // namespace family_internal

template <class Slides>
void ReadSlidingLayers(FieldReader& fields, DecoderSpec& spec, Slides slides) {
  spec.sliding_window = fields.IsAbsent("sliding_window") ? 4096
                        : fields.Has("sliding_window")    ? fields.Int("sliding_window", 1)
                                                          : 0;
  if (spec.sliding_window == 0) return;
  spec.slides = family_internal::ReadLayerTypes(fields, spec.layers);
  if (spec.slides.empty()) {
    for (int layer = 0; layer < spec.layers; ++layer) spec.slides.push_back(slides(layer));
  }
  if (std::find(spec.slides.begin(), spec.slides.end(), true) == spec.slides.end()) {
    spec.slides.clear();
    spec.sliding_window = 0;
  }
}

}  // namespace outrider
