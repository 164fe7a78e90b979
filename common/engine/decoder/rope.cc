#include "common/engine/decoder/rope.h"

#include <cmath>
#include <cstddef>
#include <numbers>

namespace outrider {

std::vector<float> RopeInverseFrequencies(const DecoderSpec& spec) {
  std::vector<float> frequencies;
  for (int i = 0; i < spec.head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(spec.head_dim);
    float frequency = 1.0f / std::pow(static_cast<float>(spec.rope_theta), exponent);
    if (spec.rope_scaling.has_value()) {
      const Llama3RopeScaling& scaling = *spec.rope_scaling;
      const double original = scaling.original_max_position_embeddings;
      const double wavelength = 2 * std::numbers::pi / static_cast<double>(frequency);
      if (wavelength > original / scaling.low_freq_factor) {
        frequency = static_cast<float>(static_cast<double>(frequency) / scaling.factor);
      } else if (wavelength >= original / scaling.high_freq_factor) {
        const double smooth = (original / wavelength - scaling.low_freq_factor) /
                              (scaling.high_freq_factor - scaling.low_freq_factor);
        frequency = static_cast<float>((1 - smooth) * static_cast<double>(frequency) / scaling.factor +
                                       smooth * static_cast<double>(frequency));
      }
    }
    frequencies.push_back(frequency / static_cast<float>(spec.rope_linear_factor));
  }
  return frequencies;
}

std::vector<float> SlidingRopeInverseFrequencies(const DecoderSpec& spec) {
  if (!spec.sliding_rope_theta.has_value()) return RopeInverseFrequencies(spec);
  DecoderSpec unscaled = spec;
  unscaled.rope_theta = *spec.sliding_rope_theta;
  unscaled.rope_scaling.reset();
  unscaled.rope_linear_factor = 1;
  return RopeInverseFrequencies(unscaled);
}

RopeTable::RopeTable(const DecoderSpec& spec, int positions) {
  const std::vector<float> frequencies = RopeInverseFrequencies(spec);
  cosines.reserve(static_cast<size_t>(positions) * frequencies.size());
  sines.reserve(cosines.capacity());
  for (int position = 0; position < positions; ++position) {
    for (const float frequency : frequencies) {
      const float angle = static_cast<float>(position) * frequency;
      cosines.push_back(std::cos(angle));
      sines.push_back(std::sin(angle));
    }
  }
}

}  // namespace outrider
