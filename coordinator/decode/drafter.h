// The interface of all that propose tokens.
#pragma once

#include <span>

#include "common/net/asio.h"
#include "common/spec/verdict.h"
#include "coordinator/generation/generation.h"

namespace outrider {

// A proposal that the target itself made, to follow its own verdict.
struct TargetProposal {
  Proposal nodes;                             // empty: none is usable
  DraftStatus status = DraftStatus::kUsable;  // why, if it is empty
  // compute_us is the time of the proposal, which shared it with the sequences of its verification.
  v1::ItemTiming timing;
};

// One object for each generation, which outlives it. Executor thread.
class Drafter {
 public:
  explicit Drafter(Generation* generation) : generation_(generation) {}
  virtual ~Drafter() = default;

  // Starts a proposal of at most `length.most` tokens to follow the generation's, unless it was begun ahead.
  // If that is 0, none is wanted, but a drafter that must compute the prompt itself starts on it.
  virtual void Begin(const DraftLength& length) = 0;

  // Waits for the proposal that was begun. Never fails: if there is nothing to propose, or no answer in time,
  // the proposal is empty and the round plain. *timing is the time of the drafter's own work.
  virtual asio::awaitable<Proposal> Take(v1::ItemTiming* timing) = 0;

  // The last proposal is being verified: starts to draft for these outcomes, the likeliest first, after all
  // other work. A drafter whose proposals cost nothing ignores this.
  virtual void RunAhead(const Proposal& /*proposal*/, std::span<const Outcome> /*outcomes*/) {}

  // The proposal was verified, or dropped (an empty path). `n` is the number of committed tokens before it.
  // Also called after rounds that asked for nothing. Gives up what was begun for other outcomes. A drafter
  // that looks at committed tokens only ignores this.
  virtual void OnVerdict(size_t /*n*/, const Verdict& /*verdict*/) {}

  // Whether the target should be asked to propose what follows the verdict. Depends on committed tokens only.
  virtual bool WantsTargetProposal() const { return true; }

  // The target proposed this itself, with its verdict, to follow the first `n` committed tokens.
  virtual void OnProposal(size_t /*n*/, TargetProposal /*proposal*/) {}

  // What running ahead did in the last verified round; sets all but `runs`.
  virtual AheadReport ahead() const { return {}; }

  // How many of the first tokens of the last proposal are from the request's prediction.
  virtual size_t predicted() const { return 0; }

  // Who made the last proposal, for statistics.
  virtual v1::DrafterKind kind() const = 0;

  // Why the last proposal is empty, if it is.
  virtual DraftStatus status() const { return DraftStatus::kUsable; }

  // Call when the generation is over or its client gone: computes nothing more, and ends a Take in progress.
  virtual void Stop() {}

 protected:
  Generation* const generation_;
};

}  // namespace outrider
