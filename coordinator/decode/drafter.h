// The interface of everything that proposes tokens.
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
  // compute_us is the time that the proposal took. The batch sizes are those of the verification.
  v1::ItemTiming timing;
};

// One for each generation, which outlives it. Executor thread.
class Drafter {
 public:
  explicit Drafter(Generation* generation) : generation_(generation) {}
  virtual ~Drafter() = default;

  // Starts a proposal of `length` after the generation's tokens, unless it was begun ahead. If `length.most`
  // is 0, no proposal is wanted, but a drafter that must compute the prompt itself starts to do so.
  virtual void Begin(const DraftLength& length) = 0;

  // Waits for the proposal that was begun. Never fails: if there is nothing to propose, or no answer in time,
  // the proposal is empty and the round plain. *timing is set to the time of the drafter's own work.
  virtual asio::awaitable<Proposal> Take(v1::ItemTiming* timing) = 0;

  // Call while the last proposal is being verified. Starts to draft for these outcomes, the likeliest first,
  // at a lower priority than all other work. A drafter whose proposals cost nothing ignores this.
  virtual void RunAhead(const Proposal& /*proposal*/, std::span<const Outcome> /*outcomes*/) {}

  // Call when the proposal was verified or dropped (then the path is empty), and after rounds that asked for
  // none. `n` is the number of tokens committed before it. Gives up the drafts for other outcomes. A drafter
  // that needs only committed tokens ignores this.
  virtual void OnVerdict(size_t /*n*/, const Verdict& /*verdict*/) {}

  // Whether the target should be asked to propose what follows the verdict. Depends on committed tokens only.
  virtual bool WantsTargetProposal() const { return true; }

  // Takes a proposal that the target made with its verdict, to follow the first `n` committed tokens.
  virtual void OnProposal(size_t /*n*/, TargetProposal /*proposal*/) {}

  // The result of running ahead in the last verified round, without `runs`, which the caller sets.
  virtual AheadReport ahead() const { return {}; }

  // How many of the last proposal's first tokens come from the request's prediction.
  virtual size_t predicted() const { return 0; }

  // Whether a proposal begun now may have tokens. Depends on committed tokens only.
  virtual bool MayPropose() { return true; }

  // Who makes the next proposal, if one is wanted. Depends on committed tokens only.
  virtual v1::DrafterKind NextKind() { return kind(); }

  // Who made the last proposal, for statistics.
  virtual v1::DrafterKind kind() const = 0;

  // Why the last proposal is empty, if it is.
  virtual DraftStatus status() const { return DraftStatus::kUsable; }

  // Call when the generation is over or its client is gone. Stops all work, and ends a Take in progress.
  virtual void Stop() {}

 protected:
  Generation* const generation_;
};

}  // namespace outrider
