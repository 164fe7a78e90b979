// The part of a step that follows its verdicts: the target's own proposals.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/engine/batch.h"
#include "common/engine/proposers/proposer.h"
#include "common/engine/runner.h"
#include "common/engine/sequence/sequence_state.h"
#include "common/engine/sequence/sequence_store.h"

namespace outrider {

// A sequence whose answer has its verdict.
struct VerdictToFollow {
  SequenceState* sequence = nullptr;
  // Of the row that the verdict's token was drawn from (HiddenView), if its proposer wants it. A copy:
  // drafting for others overwrites what the step computed.
  std::vector<float> hidden = {};
};

// `hidden`: of the rows that were judged, if its proposer wants them.
VerdictToFollow ToFollow(SequenceState& sequence, const HiddenView& hidden);

// The proposer of the sequence's parameters; null if there is none, or the item in progress is not verified.
Proposer* ProposerOf(const Runner& runner, const SequenceState& sequence);

// Whether a proposal was asked for, and there is a proposer.
bool WantsProposal(const Runner& runner, const SequenceState& sequence);

// Fills in the answers' proposals, which stay empty where the context or the cache has no room. The items are
// to be finished then. An error means that the device failed. All those with the same proposer draft
// together.
absl::Status ProposeAfter(std::span<const VerdictToFollow> verdicts, Runner& runner, SequenceStore& store);

}  // namespace outrider
