// The drafter that asks the draft service.
#pragma once

#include <memory>

#include "coordinator/drafter.h"
#include "coordinator/link.h"
#include "coordinator/metrics.h"
#include "coordinator/remote_sequence.h"

namespace outrider {

class ModelDrafter final : public Drafter {
 public:
  // The draft answers within `budget` with the tokens it has by then.
  ModelDrafter(std::shared_ptr<DraftLink> link, Metrics* metrics, Clock::duration budget, Fork fork)
      : link_(std::move(link)), metrics_(metrics), budget_(budget), remote_(std::move(fork)) {}

  asio::awaitable<Proposal> Propose(Generation& generation, int k, v1::ItemTiming* timing) override;
  void OnVerdict(size_t n, size_t accepted) override { remote_.OnVerdict(n, accepted); }
  v1::DrafterKind kind() const override { return v1::DRAFTER_KIND_MODEL; }
  void Stop(const Generation& generation) override;

 private:
  // What the answer says about the draft's cache, and whether asking once more makes sense.
  bool Learn(const absl::Status& status, size_t cached);

  const std::shared_ptr<DraftLink> link_;
  Metrics* const metrics_;
  const Clock::duration budget_;
  RemoteSequence remote_;
  uint64_t round_ = 0;              // of the item in flight or last sent
  Clock::time_point not_before_{};  // the draft was full: it is left alone until then
};

}  // namespace outrider
