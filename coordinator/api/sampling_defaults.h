// How a model is meant to be sampled from, by its own account.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// Temperature, top_k, top_p, min_p and repetition_penalty of the generation_config.json in a model's folder,
// as far as it has them; none without the file. INVALID_ARGUMENT, naming the file, if it is damaged or a
// value is out of range.
absl::StatusOr<v1::SamplingParams> ReadSamplingDefaults(const std::string& folder);

// Takes from `defaults` what is not set.
void FillIn(const v1::SamplingParams& defaults, v1::SamplingParams* sampling);

}  // namespace outrider
