// What the engine is asked to do for a sequence, and what it answers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/engine/sequence_params.h"
#include "common/kv/sequence_id.h"
#include "common/spec/logprobs.h"
#include "common/spec/proposal.h"
#include "common/spec/verdict.h"

namespace outrider {

// Where the time of an item went.
struct WorkTiming {
  absl::Duration queue;    // from Submit until the first forward pass that it was part of
  absl::Duration compute;  // from there until the answer
  int batch_sequences = 0;
  int batch_rows = 0;  // of its last forward pass
};

// The answer to an item.
struct Answer {
  absl::Status status;
  int num_computed = 0;  // tokens of the sequence whose keys and values are in the cache
  int prefix_hit = 0;    // of the item's tokens, those that were found in the cache of other sequences
  WorkTiming timing;
  Proposal proposal;                                      // of ProposeWork
  std::unique_ptr<Verdict> verdict;                       // of VerifyWork
  std::vector<PositionLogProbabilities> logprobs;         // of the emitted tokens
  std::vector<PositionLogProbabilities> prompt_logprobs;  // of the committed tokens from index 1 on
};

// Appends the item's tokens and does no more: a piece of a long prefix, or a prompt that is computed ahead.
struct AppendWork {};

// Drafts a chain.
struct ProposeWork {
  int draft_tokens = 1;  // K, at least 1
};

// Judges a proposal, which may be empty.
struct VerifyWork {
  Proposal proposal = {};     // a chain, prepared
  uint64_t content_hash = 0;  // names the proposal and its distributions within this process
  int prompt_logprobs = -1;   // alternatives to report with each committed token; -1: none
};

using Work = std::variant<AppendWork, ProposeWork, VerifyWork>;

// An item of the protocol (SequenceUpdate there): an envelope that names a sequence and its tokens, and the
// work.
struct WorkItem {
  SequenceId id;
  uint64_t round = 0;
  uint32_t base = 0;
  std::vector<TokenId> tokens;
  uint64_t prefix_hash = 0;
  uint64_t params_hash = 0;
  std::shared_ptr<const SequenceParams> params;  // null: those known under params_hash
  std::optional<SequenceId> fork_of;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Time received;                        // set by Worker::Submit
  absl::Status invalid;                       // why the item cannot be served, found before it got here
  std::function<void(const Answer&)> answer;  // called once, from the engine thread; must not block
  Work work;

  // Committed tokens once the item is taken in.
  size_t committed() const { return base + tokens.size(); }
};

}  // namespace outrider
