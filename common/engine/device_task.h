// Work on a sequence's logits that a device does in place, so that only tokens and verdicts leave it.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/engine/sequence_params.h"
#include "common/spec/verify.h"

namespace outrider {

// Drafts K tokens; each but the last is fed back to draft the next one. Needs one row of logits.
struct ProposeTask {
  int draft_tokens = 0;    // K, at least 1
  Proposal proposal = {};  // the result
};

// Verifies a draft whose tokens are the last ones of the sequence. Needs a row of logits for each drafted
// token and one more.
struct VerifyTask {
  absl::Span<const ProposalNode> draft = {};  // a chain
  Verdict verdict = {};                       // the result
};

// A task for a device. Model::CanRun says which ones a model supports; the host handles the others from
// logits. The result is the one that common/spec gives for the same logits and random numbers.
struct DeviceTask {
  const SequenceParams* params = nullptr;
  uint64_t round_start = 0;  // tokens of the sequence before the draft
  std::variant<ProposeTask, VerifyTask> work = {};
  absl::Status status = {};  // the result; INTERNAL "logits_not_finite" if a logit is NaN or infinite
};

}  // namespace outrider
