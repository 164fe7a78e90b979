// Between the protocol's parameters and those of the mathematics.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/spec/controls.h"
#include "common/spec/verify.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

// INVALID_ARGUMENT, reason RULE_UNKNOWN, for a rule that this version does not have.
absl::StatusOr<Rule> ParseRule(v1::Rule rule);

// OK, or INVALID_ARGUMENT naming `field`, for ids that must be in [0, vocab_size).
absl::Status CheckTokenIds(const google::protobuf::RepeatedField<uint32_t>& ids, uint32_t vocab_size,
                           absl::string_view field);

// Controls as the engine knows them; `end_ids` are those that min_tokens holds back.
SamplingParams ParseSampling(const v1::SamplingParams& sampling,
                             const google::protobuf::RepeatedField<uint32_t>& end_ids);

}  // namespace outrider
