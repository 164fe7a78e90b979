// Whoever proposes tokens, and what is asked of it.
#pragma once

#include <span>

#include "common/net/asio.h"
#include "common/spec/verdict.h"
#include "coordinator/generation/generation.h"
#include "coordinator/generation/round_report.h"

namespace outrider {

// What a target proposed itself, to follow its own verdict.
struct TargetProposal {
  Proposal nodes;                             // empty: none that can be used
  DraftStatus status = DraftStatus::kUsable;  // why, if it is empty
  // compute_us is the time of the proposal, which shared it with the sequences of its verification.
  v1::ItemTiming timing;
};

// One object for each generation, which outlives it. Executor thread.
class Drafter {
 public:
  explicit Drafter(Generation* generation) : generation_(generation) {}
  virtual ~Drafter() = default;

  // Starts the work on a proposal of at most `length.most` tokens to follow the generation's, unless it was
  // begun ahead. If that is 0, no proposal is wanted; a drafter that must compute the prompt itself starts on
  // that, while the target does.
  virtual void Begin(const DraftLength& length) = 0;

  // Waits for the proposal that was begun. Never fails: when there is nothing to propose, or nobody answers
  // in time, the proposal is empty and the round plain. *timing is what the drafter's own work took.
  virtual asio::awaitable<Proposal> Take(v1::ItemTiming* timing) = 0;

  // The last proposal is being verified. Starts the work on what follows each of these outcomes, the
  // likeliest first; whatever else there is to do comes first. A drafter whose proposals cost nothing has no
  // use for it.
  virtual void RunAhead(const Proposal& /*proposal*/, std::span<const Outcome> /*outcomes*/) {}

  // The proposal was verified, or dropped (an empty path). `n` is the number of committed tokens before it.
  // Also called after rounds in which nothing was asked for. What was begun for another outcome is given up.
  virtual void OnVerdict(size_t n, const Verdict& verdict) = 0;

  // Whether the target, where it proposes itself, is to be asked for what follows the verdict of the proposal
  // last taken. Depends on committed tokens only.
  virtual bool WantsTargetProposal() const { return true; }

  // The target proposed this itself, with its verdict, to follow the first `n` committed tokens.
  virtual void OnProposal(size_t /*n*/, TargetProposal /*proposal*/) {}

  // What running ahead did in the last round that was verified; all but `runs`.
  virtual AheadReport ahead() const { return {}; }

  // Who made the last proposal, for those who count.
  virtual v1::DrafterKind kind() const = 0;

  // Why the last proposal is empty, if it is.
  virtual DraftStatus status() const { return DraftStatus::kUsable; }

  // The generation is over, or its client gone: nothing is computed for it any more. Ends a Take in progress.
  virtual void Stop() {}

 protected:
  Generation* const generation_;
};

}  // namespace outrider
