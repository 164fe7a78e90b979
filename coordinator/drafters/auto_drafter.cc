#include "coordinator/drafters/auto_drafter.h"

namespace outrider {

asio::awaitable<DraftNodes> AutoDrafter::Propose(Generation& generation, int k, v1::ItemTiming* timing) {
  proposed_at_ = generation.size();
  last_ = first_.get();
  DraftNodes proposal = co_await first_->Propose(generation, k, timing);
  if (!proposal.empty()) co_return proposal;
  last_ = second_.get();
  co_return co_await second_->Propose(generation, k, timing);
}

void AutoDrafter::OnVerdict(size_t n, size_t accepted) {
  if (last_ != nullptr && n == proposed_at_) last_->OnVerdict(n, accepted);
}

void AutoDrafter::Stop(const Generation& generation) {
  first_->Stop(generation);
  second_->Stop(generation);
}

}  // namespace outrider
