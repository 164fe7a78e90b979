// Cosines and sines of the rotary position embedding.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "common/engine/decoder/decoder_spec.h"

namespace outrider {

// Inverse frequencies of the head_dim / 2 pairs, scaled if the model scales them. Computed in float32 as in
// transformers, so that the angles agree at far positions.
std::vector<float> RopeInverseFrequencies(const DecoderSpec& spec);
// The same for sliding layers.
std::vector<float> SlidingRopeInverseFrequencies(const DecoderSpec& spec);

// cosines[position * head_dim / 2 + i], and sines likewise, for positions [0, positions).
struct RopeTable {
  RopeTable(const DecoderSpec& spec, int positions);

  std::vector<float> cosines;
  std::vector<float> sines;
};

}  // namespace outrider
