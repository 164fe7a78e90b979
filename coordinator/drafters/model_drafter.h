// The drafter that asks the draft service.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "coordinator/drafters/branches.h"
#include "coordinator/link/backoff.h"
#include "coordinator/link/link.h"
#include "coordinator/link/loss_count.h"
#include "coordinator/pools/server_pool.h"
#include "coordinator/rounds/drafter.h"
#include "coordinator/rounds/metrics.h"
#include "coordinator/rounds/remote_sequence.h"

namespace outrider {

class ModelDrafter final : public Drafter {
 public:
  // The draft answers within `budget` with the tokens it has by then. After one that does not, the next round
  // asks another of the pool. `vocab` is the size of the target's vocabulary.
  ModelDrafter(DraftPool* pool, Metrics* metrics, Clock::duration budget, int vocab, Fork fork)
      : pin_(pool), metrics_(metrics), budget_(budget), vocab_(vocab), remote_(std::move(fork)) {}

  void Begin(Generation& generation, const DraftLength& length) override;
  asio::awaitable<Proposal> Take(Generation& generation, v1::ItemTiming* timing) override;
  void RunAhead(Generation& generation, const Proposal& proposal, std::span<const Outcome> outcomes,
                const OnContinuation& on_continuation) override;
  void OnVerdict(size_t n, const Verdict& verdict) override;
  AheadReport ahead() const override { return ahead_; }
  v1::DrafterKind kind() const override { return v1::DRAFTER_KIND_MODEL; }
  DraftOutcome outcome() const override { return outcome_; }
  void Stop(const Generation& generation) override;

 private:
  // An item whose answer has not been taken.
  struct InFlight {
    std::shared_ptr<DraftPool::Server> server;  // of which the others are
    std::unique_ptr<CircuitBreaker::Permit> permit;
    std::unique_ptr<TurnQueue::Turn> turn;  // of a suspect
    std::unique_ptr<DraftLink::Call> call;
    Clock::time_point deadline;
    size_t n = 0;             // committed tokens that it knew of
    int k = 0;                // tokens that it asked for: the depth,
    int nodes = 0;            // and all of them
    bool is_ahead = false;    // it was a branch,
    bool drew_first = false;  // whose last token the draft had to draw
  };

  // Sends the tokens that the draft lacks, as a new round that asks for what is wanted. False if there is
  // nothing to ask for, or nobody to ask: then nothing is in flight.
  bool Send(Generation& generation);
  // Leave to send an item to the draft that the sequence is on, without the call. Null if that cannot be
  // asked now; sets outcome_.
  std::optional<InFlight> Prepare();
  // There is no draft to ask.
  void SetAway();
  using Nodes = google::protobuf::RepeatedPtrField<v1::DraftNode>;
  // Whatever the draft sent as tokens.
  absl::StatusOr<Proposal> ParseNodes(const Generation& generation, const Nodes& nodes) const;
  // The proposal: a chain or, if one was asked for, a tree, of at least one token and at most what `item`
  // allows.
  absl::StatusOr<Proposal> Parse(const Generation& generation, const v1::ProposeResult& result,
                                 const InFlight& item) const;
  // Has the generation go on with a branch whose outcome has come.
  void Adopt(Branch branch);
  // Whether asking once more at once makes sense.
  bool OnRefusal(const Generation& generation, const InFlight& item, const DraftLink::Answer& answer);
  // After this the generation goes on without a draft.
  void GiveUp(const Generation& generation);

  DraftPool::Pin pin_;
  Metrics* const metrics_;
  const Clock::duration budget_;
  const int vocab_;
  uint32_t unfit_vocab_ = 0;  // size of the vocabulary of a draft that cannot propose for this sequence
  RemoteSequence remote_;
  Branches branches_;
  bool may_run_ahead_ = true;
  AheadReport ahead_;
  DraftLength wanted_;  // of the proposal that was begun
  int attempts_ = 0;    // items that were sent for it
  std::optional<InFlight> in_flight_;
  DraftOutcome outcome_ = DraftOutcome::kUsable;
  LossCount losses_;
  // The draft had no room for this sequence: it is left alone until then.
  Backoff full_pause_{std::chrono::milliseconds(20), std::chrono::seconds(1)};
  Clock::time_point not_before_{};
  bool stopped_ = false;  // what is sent now, nobody would release
};

}  // namespace outrider
