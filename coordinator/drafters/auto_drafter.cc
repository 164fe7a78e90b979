#include "coordinator/drafters/auto_drafter.h"

namespace outrider {

void AutoDrafter::Begin(Generation& generation, const DraftLength& length) {
  if (length.most == 0) return second_->Begin(generation, length);
  length_ = length;
  proposed_at_ = generation.size();
  last_ = first_.get();
  first_->Begin(generation, length);
}

asio::awaitable<Proposal> AutoDrafter::Take(Generation& generation, v1::ItemTiming* timing) {
  Proposal proposal = co_await first_->Take(generation, timing);
  if (!proposal.empty()) co_return proposal;
  last_ = second_.get();
  second_->Begin(generation, length_);
  co_return co_await second_->Take(generation, timing);
}

void AutoDrafter::RunAhead(Generation& generation, const Proposal& proposal,
                           std::span<const Outcome> outcomes, const OnContinuation& on_continuation) {
  last_->RunAhead(generation, proposal, outcomes, on_continuation);
}

void AutoDrafter::OnVerdict(size_t n, const Verdict& verdict) {
  if (last_ != nullptr && n == proposed_at_) last_->OnVerdict(n, verdict);
}

void AutoDrafter::Stop(const Generation& generation) {
  first_->Stop(generation);
  second_->Stop(generation);
}

}  // namespace outrider
