// How much a round drafts, and the report on a round that has its verdict.
#pragma once

#include <algorithm>
#include <optional>

#include "common/net/asio.h"
#include "common/spec/proposal.h"
#include "common/spec/tree_shape.h"
#include "common/spec/verdict.h"
#include "coordinator/generation/generation.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// How much to draft in a round.
struct DraftLength {
  int most = 0;  // K; for a tree, the depth
  // When a draft model stops before that. Other drafters ignore it.
  std::optional<DraftStop> stop = {};
  // The draft also works on likely outcomes of the round while it is verified. Other drafters ignore it.
  bool ahead = false;
  std::optional<TreeShape> tree = {};  // unset: a chain
};

// An outcome of a verification that is worth drafting for.
struct Outcome {
  size_t accepted = 0;                // drafted tokens that stand
  std::optional<TokenId> token = {};  // follows them; unset: the draft draws it, after a whole proposal
  DraftLength length;                 // of the proposal that follows it
};

// The result of asking for a proposal.
enum class DraftStatus {
  kUsable,  // a proposal, or there was nothing to propose
  kFailed,  // the draft was asked; its answer was late, empty, an error, or refused by the target
  kAway,    // the draft cannot be asked: it is down, or has failed so often that it is left alone
};

// What drafting ahead did in a round.
struct AheadReport {
  bool runs = false;         // the schedule was to draft while this round was verified
  int steps = 0;             // draft steps for what was verified, if begun while the previous round was
  int branches = 0;          // outcomes of this round that were drafted for
  bool hit = false;          // its outcome was one of them
  size_t wasted_tokens = 0;  // drafted for outcomes that did not come, as far as the draft had answered
};

// Where the time of a round went. A proposal that the target itself made, at the end of the previous round,
// counts in the round that verifies it: in `draft`, `draft_server` and `round`.
struct RoundTimes {
  Clock::duration draft{};      // waiting for the proposal
  v1::ItemTiming draft_server;  // the server's part of it
  Clock::duration verify{};     // waiting for the verdict
  v1::ItemTiming verify_server;
  Clock::duration round{};
};

// From receipt to answer.
inline uint32_t ServerMicroseconds(const v1::ItemTiming& timing) {
  return timing.queue_us() + timing.compute_us();
}

// Its pointers stay valid until the report has been taken.
struct RoundReport {
  const Generation* generation;  // the round is committed
  const Proposal* proposal;      // what was verified
  const Verdict* verdict;
  v1::DrafterKind drafter;  // who proposed; matters only if anything was proposed
  DraftStatus draft_status;
  int chosen;               // K as asked for, or as given by a draft that chooses it
  int emitted;              // tokens
  int running;              // generations in progress, this one included
  uint32_t proposal_bytes;  // on the wire; only for requests that are traced
  AheadReport ahead = {};
  RoundTimes times;

  // Whether the round computed the prompt.
  bool prefill() const { return generation->stats().rounds() == 1; }
  // Whether the draft was to be asked, and could be.
  bool speculative() const { return chosen > 0 && draft_status != DraftStatus::kAway; }
  int drafted() const { return static_cast<int>(proposal->size()); }
  int accepted() const { return static_cast<int>(verdict->path.size()); }
  // Accepted tokens up to the end of the text.
  int standing() const { return std::min(accepted(), emitted); }
};

}  // namespace outrider
