// What a device does with the logits of a sequence where they are, so that only tokens and verdicts leave it.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/engine/sequence_params.h"
#include "common/spec/verify.h"

namespace outrider {

// Drafts K tokens, each of them fed before the next but for the last. Wants one row of logits.
struct ProposeTask {
  int draft_tokens = 0;    // K, at least 1
  Proposal proposal = {};  // the result
};

// Judges a draft whose tokens are the last of the sequence's tokens. Wants a row for each of them and one
// more.
struct VerifyTask {
  absl::Span<const ProposalNode> draft = {};  // a chain
  Verdict verdict = {};                       // the result
};

// A model carries out the tasks that it can (Model::CanRun); what it cannot is decided on the host, from
// logits. The result is what common/spec gives for the same logits: the same tokens from the same random
// numbers.
struct DeviceTask {
  const SequenceParams* params = nullptr;  // must be set
  uint64_t round_start = 0;                // tokens of the sequence before the draft
  std::variant<ProposeTask, VerifyTask> work = {};
  absl::Status status = {};  // the result; INTERNAL "logits_not_finite" if a logit is NaN or infinite
};

}  // namespace outrider
