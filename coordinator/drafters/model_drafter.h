// The drafter that asks the draft service.
#pragma once

#include <memory>
#include <optional>

#include "coordinator/link/link.h"
#include "coordinator/rounds/drafter.h"
#include "coordinator/rounds/metrics.h"
#include "coordinator/rounds/remote_sequence.h"

namespace outrider {

class ModelDrafter final : public Drafter {
 public:
  // The draft answers within `budget` with the tokens it has by then.
  ModelDrafter(std::shared_ptr<DraftLink> link, Metrics* metrics, Clock::duration budget, Fork fork)
      : link_(std::move(link)), metrics_(metrics), budget_(budget), remote_(std::move(fork)) {}

  void Begin(Generation& generation, int k) override;
  asio::awaitable<Proposal> Take(Generation& generation, v1::ItemTiming* timing) override;
  void OnVerdict(size_t n, size_t accepted) override { remote_.OnVerdict(n, accepted); }
  v1::DrafterKind kind() const override { return v1::DRAFTER_KIND_MODEL; }
  void Stop(const Generation& generation) override;

 private:
  // An item whose answer has not been taken.
  struct InFlight {
    std::unique_ptr<DraftLink::Call> call;
    Clock::time_point deadline;
    size_t n = 0;  // committed tokens that it knew of
    int k = 0;     // tokens that it asked for
  };

  // Sends the tokens that the draft lacks, as a new round that asks for what is wanted. False if the draft
  // cannot be asked now.
  bool Send(Generation& generation);
  // The proposal, of at most k tokens.
  absl::StatusOr<Proposal> Parse(const v1::ProposeResult& result, int k) const;
  // Whether asking once more at once makes sense.
  bool OnRefusal(const DraftLink::Answer& answer);

  const std::shared_ptr<DraftLink> link_;
  Metrics* const metrics_;
  const Clock::duration budget_;
  RemoteSequence remote_;
  int wanted_ = 0;    // K of the proposal that was begun
  int attempts_ = 0;  // items that were sent for it
  std::optional<InFlight> in_flight_;
  Clock::time_point not_before_{};  // the draft was full: it is left alone until then
};

}  // namespace outrider
