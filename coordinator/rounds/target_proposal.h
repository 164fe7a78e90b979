// What a target proposed itself, to follow its own verdict.
#pragma once

#include "common/spec/proposal.h"
#include "coordinator/rounds/draft_outcome.h"
#include "outrider/v1/sequence.pb.h"

namespace outrider {

struct TargetProposal {
  Proposal nodes;                                // empty: none that can be used
  DraftOutcome outcome = DraftOutcome::kUsable;  // why, if it is empty
  // compute_us is the time of the proposal, which shared it with the sequences of its verification.
  v1::ItemTiming timing;
};

}  // namespace outrider
