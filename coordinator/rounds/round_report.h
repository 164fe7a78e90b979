// What there is to say about a round that returned a verdict.
#pragma once

#include <algorithm>

#include "common/spec/proposal.h"
#include "common/spec/verdict.h"
#include "coordinator/link/event.h"
#include "coordinator/rounds/ahead_report.h"
#include "coordinator/rounds/draft_outcome.h"
#include "coordinator/rounds/generation.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// Where the time of a round went. A proposal that the target made itself, at the end of the round before,
// counts where it is verified: in `draft`, `draft_server` and `round` of that round.
struct RoundTimes {
  Clock::duration draft{};      // waiting for the proposal
  v1::ItemTiming draft_server;  // what of it was the server's
  Clock::duration verify{};     // waiting for the verdict
  v1::ItemTiming verify_server;
  Clock::duration round{};
};

// From receipt to answer.
inline uint32_t ServerMicroseconds(const v1::ItemTiming& timing) {
  return timing.queue_us() + timing.compute_us();
}

// All that it refers to lives until the report has been taken.
struct RoundReport {
  const Generation* generation;  // the round is committed
  const Proposal* proposal;      // what was verified
  const Verdict* verdict;
  v1::DrafterKind drafter;  // who proposed; matters only if anything was
  DraftOutcome outcome;
  int chosen;               // K: what was asked for, or what a draft gave that was to choose itself
  int emitted;              // tokens
  int running;              // generations in progress, this one included
  uint32_t proposal_bytes;  // on the wire; only for requests that are traced
  AheadReport ahead = {};
  RoundTimes times;

  // It computed the prompt.
  bool prefill() const { return generation->stats().rounds() == 1; }
  // The draft was to be asked, and could be.
  bool speculative() const { return chosen > 0 && outcome != DraftOutcome::kAway; }
  int drafted() const { return static_cast<int>(proposal->size()); }
  int accepted() const { return static_cast<int>(verdict->path.size()); }
  // Of these, the ones up to the end of the text.
  int standing() const { return std::min(accepted(), emitted); }
};

}  // namespace outrider
