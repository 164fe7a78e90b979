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

  // Has the draft compute the prompt while the target does, so that the first proposal need not wait for it.
  void Prepare(Generation& generation) override;
  asio::awaitable<DraftNodes> Propose(Generation& generation, int k, v1::ItemTiming* timing) override;
  void OnVerdict(size_t n, size_t accepted) override { remote_.OnVerdict(n, accepted); }
  v1::DrafterKind kind() const override { return v1::DRAFTER_KIND_MODEL; }
  void Stop(const Generation& generation) override;

 private:
  // An item that was sent without waiting for its answer.
  struct Preparation {
    explicit Preparation(const asio::any_io_executor& executor) : answered(executor) {}
    Event answered;
    std::optional<absl::StatusOr<v1::ProposeResult>> result;
    size_t n = 0;
  };

  // The generation's tokens that the draft lacks, as a new round; K tokens wanted.
  v1::DraftItem MakeItem(Generation& generation, int k, Clock::duration* allowed);
  // Waits for the answer to what Prepare sent; false if it leaves nothing to ask for.
  asio::awaitable<bool> FinishPreparation();
  // What the answer says about the draft's cache, and whether asking once more makes sense.
  bool Learn(const absl::Status& status, size_t cached);

  const std::shared_ptr<DraftLink> link_;
  Metrics* const metrics_;
  const Clock::duration budget_;
  RemoteSequence remote_;
  std::shared_ptr<Preparation> preparation_;  // until Propose has seen its answer
  uint64_t round_ = 0;                        // of the item in flight or last sent
  Clock::time_point not_before_{};            // the draft was full: it is left alone until then
};

}  // namespace outrider
