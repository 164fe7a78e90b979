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
  std::vector<CandidateRow> candidates;  // instead, if the request is a search: after the last committed
                                         // token, then after each node of the proposal
  uint32_t proposal_bytes = 0;           // of the proposal on the wire; only for requests that are traced
  uint32_t prefix_hit = 0;               // tokens of the item that the target had from other sequences
  Generation::Logprobs logprobs;         // of the emitted tokens, if the request asks for them
  Generation::Logprobs prompt_logprobs;  // of the prompt, likewise
  v1::ItemTiming timing;                 // without that of `next`
  TargetProposal next = {};              // the target's own proposal, if it was asked for one
};

// One for each generation, which is on one target of the pool. If that ends, drains or hangs, another is sent
// the round, with the whole sequence (`base` 0). This is exact: proposal and random numbers are the same, no
// late verdict is taken, and the choice does not depend on what targets would say. Executor thread.
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

  // Returns a verdict over `proposal`, which is emptied if the target cannot take it; the round is then
  // plain. While all targets are away, waits for them as long as the links' options say. Errors are for the
  // client: UNAVAILABLE when the targets stay away, CANCELLED after Stop, DEADLINE_EXCEEDED at the deadline,
  // INTERNAL when the model yields no distribution, the verdict does not fit `proposal`, or links to any
  // targets were lost under the item too often (LossCount).
  //
  // With `next` the target is also asked for a proposal of its own to follow the verdict. It is no error if
  // it gives none, or one that was not asked for.
  //
  // Calls `away` once, while the item is on its way. `away` and `next`, unless null, outlive the call.
  asio::awaitable<absl::StatusOr<TargetAnswer>> Verify(Proposal& proposal,
                                                       const std::function<void()>* away = nullptr,
                                                       const DraftLength* next = nullptr);

  // For a search: `accepted` tokens of the last proposal were appended to the generation's first `n`.
  void OnExtended(size_t n, size_t accepted) { remote_.OnVerdict(n, accepted); }

  // As Drafter::Stop; ends a Verify in progress.
  void Stop() {
    stopped_ = true;
    wake_.Notify();
    if (call_ != nullptr) call_->Cancel();
    pin_.Release();
  }

 private:
  // Sends the first tokens of a long sequence, so that others get their turn in between.
  asio::awaitable<absl::Status> SendPrefix();
  // Fills in the tokens up to `end` that the target lacks, as round round_.
  void FillTokens(size_t end, v1::VerifyItem* verify) const;
  // Makes a verify item of round_ over the tokens and the proposal, which also asks for `next`, unless null.
  v1::TargetItem MakeItem(const Proposal& proposal, const DraftLength* next) const;
  bool CanPropose() const;
  int VocabSize() const { return static_cast<int>(pin_.pool().info()->vocab_size()); }
  // Converts what came as a proposal of the length `asked`.
  TargetProposal TakeProposal(const v1::VerifyResult& result, const DraftLength& asked) const;
  // Converts an item's result, and updates what the next item depends on. Moves out of `result`.
  absl::StatusOr<TargetAnswer> Take(v1::VerifyResult& result, const Proposal& proposal);
  // Whether the rest of the result is what was asked for.
  absl::Status CheckReport(const Proposal& proposal, const Verdict& verdict,
                           const v1::VerifyResult& result) const;
  // Corrects the belief about the target, and empties a proposal that it refuses. OK if what is left is worth
  // sending again; INTERNAL if the link was lost under it once too often.
  absl::Status Recover(const TargetLink::Answer& answer, Proposal& proposal);
  asio::awaitable<absl::Status> WaitForTurn(const TurnQueue::Turn& turn, const TargetLink& link);
  // Waits until the sequence is on a target that can be used.
  asio::awaitable<absl::Status> WaitForTarget();
  // Why waiting has ended in vain.
  absl::Status GaveUp() const;

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
  // How long to leave alone a target that had no room.
  Backoff full_pause_{std::chrono::milliseconds(20), std::chrono::seconds(1)};
  Clock::time_point not_before_{};
  Event wake_;  // Stop
  bool stopped_ = false;
};

}  // namespace outrider
