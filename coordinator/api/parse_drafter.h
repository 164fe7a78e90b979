// What a request says about who drafts, and how much.
#pragma once

#include "absl/status/status.h"
#include "coordinator/api/parse_request.h"
#include "coordinator/rounds/request.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// Who drafts for a request that does not say so: without a draft service n-grams, which need nothing.
v1::DrafterKind DefaultDrafter(const RequestDefaults& defaults);

// INVALID_ARGUMENT, naming those that can be had, if the coordinator or the target lacks what the drafter
// needs. Without a target, null, whatever a target can have passes.
absl::Status CheckDrafter(v1::DrafterKind kind, const RequestDefaults& defaults,
                          const v1::ServerInfo* target);

// Fills in the drafter, the target's proposer and K. `repeatable`: a K that the policy chooses does not
// change what a seed gives.
absl::Status ParseDrafter(const v1::SpeculationOptions& speculation, const RequestDefaults& defaults,
                          const v1::ServerInfo& target, bool repeatable, Request& request);

}  // namespace outrider
