// A unit of work on a sequence for the engine, and its answer. Checks limits and recognises repeated items.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/engine/sequence_params.h"
#include "common/kv/lease_table.h"
#include "common/spec/distribution.h"
#include "common/spec/proposal.h"
#include "common/spec/tree_shape.h"
#include "common/spec/verdict.h"

namespace outrider {

// The time spent on an item.
struct WorkTiming {
  absl::Duration queue;    // from Submit to the item's first forward pass
  absl::Duration compute;  // from there to the answer
  int batch_sequences = 0;
  int batch_rows = 0;      // both of its last forward pass
  absl::Duration propose;  // the part of `compute` that the target's own proposal took
};

// The answer to an item.
struct Answer {
  absl::Status status;
  int num_computed = 0;  // tokens of the sequence whose keys and values are in the cache
  int prefix_hit = 0;    // tokens of the item that were found in the prefix cache
  WorkTiming timing;
  std::optional<TokenId> next;                            // of ProposeWork::draw_next
  Proposal proposal;                                      // of ProposeWork, and of VerifyWork::propose
  std::unique_ptr<Verdict> verdict;                       // of VerifyWork
  std::vector<CandidateRow> candidates;                   // of VerifyWork::candidates
  std::vector<PositionLogProbabilities> logprobs;         // of the emitted tokens
  std::vector<PositionLogProbabilities> prompt_logprobs;  // of the committed tokens, from index 1 on
};

// The answer to an item that is refused.
inline Answer Refusal(absl::Status status, int num_computed) {
  Answer answer;
  answer.status = std::move(status);
  answer.num_computed = num_computed;
  return answer;
}

// Only computes the item's tokens: a chunk of a long prefix, or a prompt in advance.
struct AppendWork {};

// Drafts a chain of tokens, or a tree.
struct ProposeWork {
  int draft_tokens = 1;                // K, or a tree's depth; at least 1, or 0 with draw_next
  std::optional<DraftStop> stop = {};  // when to stop earlier; the proposal then has confidences
  bool draw_next = false;              // first draw and commit the token that follows the item's
  int alternatives = 0;                // other choices to report with each drafted token
  std::optional<TreeShape> tree = {};  // the shape of a tree; none: a chain
};

// A request that the target itself propose what follows its verdict.
struct ProposalRequest {
  int draft_tokens = 1;                // K, or a tree's depth; at least 1
  std::optional<TreeShape> tree = {};  // none: a chain
};

// Verifies a proposal, which may be empty.
struct VerifyWork {
  Proposal proposal = {};     // its distributions are prepared
  uint64_t content_hash = 0;  // identifies the proposal and its distributions within this process
  int prompt_logprobs = -1;   // alternatives to report with each committed token; -1: prompt is not scored
  // If not 0, report this many of the most probable tokens after the last committed one and after each node,
  // instead of a verdict.
  int candidates = 0;
  std::optional<ProposalRequest> propose = {};  // by SequenceParams::proposer
};

using Work = std::variant<AppendWork, ProposeWork, VerifyWork>;

// An item of the protocol: the work, in an envelope (SequenceUpdate there) that identifies a sequence and
// carries its tokens.
struct WorkItem {
  SequenceId id;
  uint64_t round = 0;
  uint32_t base = 0;
  std::vector<TokenId> tokens;
  uint64_t prefix_hash = 0;
  uint64_t params_hash = 0;
  std::shared_ptr<const SequenceParams> params;  // null: the ones already known under params_hash
  std::optional<SequenceId> fork_of;
  bool branch = false;  // some of its tokens are only assumed to be committed; see SequenceStore
  absl::Time deadline = absl::InfiniteFuture();
  absl::Time received;                        // set by Worker::Submit
  absl::Status invalid;                       // why the item is refused, if parsing found a reason
  std::function<void(const Answer&)> answer;  // called once, by Submit or the engine thread; must not block
  // Called once, on the thread that samples, as soon as ProposeWork::draw_next has its token; must not block.
  // Only for the item that began the work, not for its repetitions. May be null.
  std::function<void(TokenId)> on_next;
  Work work;

  // The number of the sequence's committed tokens, this item's included.
  size_t committed() const { return base + tokens.size(); }
};

// The capacity of the model and its KV cache.
struct SequenceLimits {
  int context = 0;  // positions of a sequence, drafted ones included
  int vocab = 0;
  int kv_blocks = 0;
  int block_size = 0;
};

// INVALID_ARGUMENT, reason CONTEXT_EXCEEDED, CACHE_TOO_SMALL or PROMPT_LOGPROBS_BASE, for an item that could
// not be served even by an idle server.
absl::Status CheckLimits(const WorkItem& item, const SequenceLimits& limits);

// A hash of an item's content. It does not depend on what may differ when the item is sent again: base,
// budget, and whether it is a branch. Never 0.
uint64_t DigestOf(const WorkItem& item);

}  // namespace outrider
