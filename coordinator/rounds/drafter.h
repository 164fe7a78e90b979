// Whoever proposes tokens.
#pragma once

#include "coordinator/link/asio.h"
#include "coordinator/rounds/draft_length.h"
#include "coordinator/rounds/draft_outcome.h"
#include "coordinator/rounds/generation.h"

namespace outrider {

// One object for each generation. Executor thread.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // Starts the work on a proposal of at most `length.most` tokens to follow the generation's. If that is 0,
  // no proposal is wanted; a drafter that must compute the prompt itself starts on that, while the target
  // does.
  virtual void Begin(Generation& generation, const DraftLength& length) = 0;

  // Waits for the proposal that was begun. Never fails: when there is nothing to propose, or nobody answers
  // in time, the proposal is empty and the round plain. *timing is what the drafter's own work took.
  virtual asio::awaitable<Proposal> Take(Generation& generation, v1::ItemTiming* timing) = 0;

  // The proposal was verified, or dropped (accepted 0): that many of its tokens were committed. `n` is the
  // number of committed tokens before it. Also called after rounds in which nothing was asked for.
  virtual void OnVerdict(size_t n, size_t accepted) = 0;

  // Who made the last proposal, for those who count.
  virtual v1::DrafterKind kind() const = 0;

  // Why the last proposal is empty, if it is.
  virtual DraftOutcome outcome() const { return DraftOutcome::kUsable; }

  // The generation is over, or its client gone: nothing is computed for it any more. Ends a Take in progress.
  virtual void Stop(const Generation& generation) = 0;
};

}  // namespace outrider
