// Asks the target for verdicts, and sends again whatever the target has lost.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "common/spec/distribution.h"
#include "coordinator/decode/drafter.h"
#include "coordinator/decode/metrics.h"
#include "coordinator/decode/remote_sequence.h"
#include "coordinator/generation/generation.h"
#include "coordinator/servers/link.h"
#include "coordinator/servers/server_pool.h"

namespace outrider {

struct TargetAnswer {
  Verdict verdict;
  std::vector<CandidateRow> candidates;  // for a beam search, instead of the verdict: rows after the last
                                         // committed token, then after each node of the proposal
  uint32_t proposal_bytes = 0;           // size of the proposal on the wire; 0 unless the request is traced
  uint32_t prefix_hit = 0;               // tokens of the item that the target found in its prefix cache
  Generation::Logprobs logprobs;         // of the emitted tokens, if the request asks for them
  Generation::Logprobs prompt_logprobs;  // of the prompt, if the request asks for them
  v1::ItemTiming timing;                 // without the time of `next`
  TargetProposal next = {};              // the target's own proposal, if it was asked for one
};

// One for each generation, whose sequence is on one target of the pool. If that ends, drains or hangs, the
// round goes to another, with the whole sequence (`base` 0). This is exact: the proposal and random numbers
// stay the same, late verdicts are dropped, and no verdict affects the choice of target. Executor thread.
class TargetClient {
 public:
  // The arguments outlive this. All waits end at `deadline`.
  TargetClient(TargetPool* pool, Metrics* metrics, Generation* generation, Clock::time_point deadline,
               Fork fork)
      : pin_(pool),
        metrics_(metrics),
        generation_(generation),
        deadline_(deadline),
        remote_(std::move(fork)),
        wake_(pool->executor()) {}

  // Returns a verdict on `proposal`. If the target refuses the proposal, empties it; the round is then plain.
  // While all targets are away, waits for them for LinkOptions::patience. Errors are for the client:
  // UNAVAILABLE when the targets stay away, CANCELLED after Stop, DEADLINE_EXCEEDED at the deadline, INTERNAL
  // when the model yields no distribution, the verdict does not fit `proposal`, the target keeps refusing, or
  // connections to any targets were lost too often while the item was in flight (LossCount).
  //
  // With `next`, also asks the target for a proposal of its own to follow the verdict. It is no error if the
  // target gives none, or one that does not fit `next`.
  //
  // Calls `away` once, while the item is on its way. `away` and `next`, unless null, outlive the call.
  asio::awaitable<absl::StatusOr<TargetAnswer>> Verify(Proposal& proposal,
                                                       const std::function<void()>* away = nullptr,
                                                       const DraftLength* next = nullptr);

  // For a beam search: `accepted` tokens of the last proposal were appended to the first `n` tokens.
  void OnExtended(size_t n, size_t accepted) { remote_.OnVerdict(n, accepted); }

  // See Drafter::Stop. Ends a Verify in progress.
  void Stop() {
    stopped_ = true;
    wake_.Notify();
    if (call_ != nullptr) call_->Cancel();
    pin_.Release();
  }

 private:
  // Sends the first tokens of a long sequence, so that other sequences get their turn in between.
  asio::awaitable<absl::Status> SendPrefix();
  // Fills in the tokens up to `end` that the target lacks, as round round_.
  void FillTokens(size_t end, v1::VerifyItem* verify) const;
  // Makes the verify item of round_. It also asks for a proposal of length `next`, unless null.
  v1::TargetItem MakeItem(const Proposal& proposal, const DraftLength* next) const;
  bool CanPropose() const;
  int VocabSize() const { return static_cast<int>(pin_.pool().info()->vocab_size()); }
  // Converts the target's own proposal, for which the length `asked` was asked.
  TargetProposal TakeProposal(const v1::VerifyResult& result, const DraftLength& asked) const;
  // Converts an item's result, and updates the state that the next item depends on. Moves out of `result`.
  absl::StatusOr<TargetAnswer> Take(v1::VerifyResult& result, const Proposal& proposal);
  // OK if the log-probabilities are those that were asked for, and the prefix hit is possible.
  absl::Status CheckLogprobsAndPrefixHit(const Proposal& proposal, const Verdict& verdict,
                                         const v1::VerifyResult& result) const;
  // Corrects what the target is believed to hold, and empties a proposal that it refuses. OK if the round
  // should be sent again, otherwise the error of Verify.
  absl::Status Recover(const TargetLink::Answer& answer, Proposal& proposal);
  asio::awaitable<absl::Status> WaitForTurn(const TurnQueue::Turn& turn, const TargetLink& link);
  // Waits until the sequence is on a target that can be used.
  asio::awaitable<absl::Status> WaitForTarget();
  // The error of a wait that has ended in vain.
  absl::Status WaitError() const;

  TargetPool::Pin pin_;
  Metrics* const metrics_;
  Generation* const generation_;
  const Clock::time_point deadline_;
  RemoteSequence remote_;
  uint64_t round_ = 0;
  size_t sent_ = 0;                         // tokens of the sequence up to the end of the last item
  std::unique_ptr<TargetLink::Call> call_;  // the last one
  int failures_ = 0;                        // in a row, of a kind that should not repeat
  LossCount losses_;
  // The pause before a target that had no room is asked again.
  Backoff full_pause_{std::chrono::milliseconds(20), std::chrono::seconds(1)};
  Clock::time_point not_before_{};
  Event wake_;  // notified by Stop, by a turn that has come, and by changes of the pool
  bool stopped_ = false;
};

}  // namespace outrider
