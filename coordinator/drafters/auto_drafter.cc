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
  v1::ItemTiming spent = std::exchange(unused_, {});
  Proposal proposal = co_await first_->Take(generation, timing);
  proposed_ = proposal.size();
  if (!proposal.empty()) {
    spent.set_compute_us(spent.compute_us() + timing->compute_us());
    *timing = std::move(spent);
    co_return proposal;
  }
  last_ = second_.get();
  second_->Begin(generation, length_);
  co_return co_await second_->Take(generation, timing);
}

void AutoDrafter::RunAhead(Generation& generation, const Proposal& proposal,
                           std::span<const Outcome> outcomes, const OnContinuation& on_continuation) {
  last_->RunAhead(generation, proposal, outcomes, on_continuation);
}

void AutoDrafter::OnVerdict(size_t n, const Verdict& verdict) {
  const bool was_asked = last_ != nullptr && n == proposed_at_;
  first_was_right_ = was_asked && last_ == first_.get() && verdict.path.size() == proposed_;
  if (was_asked) last_->OnVerdict(n, verdict);
}

void AutoDrafter::OnProposal(size_t n, TargetProposal proposal) {
  unused_ = proposal.timing;
  second_->OnProposal(n, std::move(proposal));
}

void AutoDrafter::Stop(const Generation& generation) {
  first_->Stop(generation);
  second_->Stop(generation);
}

}  // namespace outrider
