// Converts the protocol's sampling parameters to those of common/spec.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/spec/controls.h"
#include "common/spec/verify.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// INVALID_ARGUMENT, reason RULE_UNKNOWN, for a rule that this version does not have.
absl::StatusOr<Rule> ParseRule(v1::Rule rule);

// INVALID_ARGUMENT, naming `field`, unless all ids are in [0, vocab_size).
absl::Status CheckTokenIds(const google::protobuf::RepeatedField<uint32_t>& ids, uint32_t vocab_size,
                           absl::string_view field);

// The sampling controls; `end_ids` are the ids that min_tokens suppresses.
SamplingParams ParseSampling(const v1::SamplingParams& sampling,
                             const google::protobuf::RepeatedField<uint32_t>& end_ids);

}  // namespace outrider
