#include "coordinator/decode/drafters/target_drafter.h"

namespace outrider {
namespace {

// Keeps the nodes that have fewer than `depth` others before them. Which these are does not depend on the
// tokens, so q stays what they were drawn from.
Proposal CutToDepth(Proposal proposal, int depth) {
  const std::vector<int> depths = Depths(proposal);
  std::vector<int> places(proposal.size());
  Proposal cut;
  for (size_t i = 0; i < proposal.size(); ++i) {
    if (depths[i] >= depth) continue;
    places[i] = static_cast<int>(cut.size());
    if (proposal[i].parent >= 0) proposal[i].parent = places[static_cast<size_t>(proposal[i].parent)];
    cut.push_back(std::move(proposal[i]));
  }
  return cut;
}

}  // namespace

asio::awaitable<Proposal> TargetDrafter::Take(v1::ItemTiming* timing) {
  TargetProposal held = std::exchange(held_, {});
  status_ = DraftStatus::kUsable;
  if (n_ != generation_->size()) co_return Proposal();
  status_ = held.status;
  *timing = held.timing;
  co_return CutToDepth(std::move(held.nodes), most_);
}

void AutoDrafter::Begin(const DraftLength& length) {
  if (length.most == 0) return second_->Begin(length);
  length_ = length;
  proposed_at_ = generation_->size();
  last_ = first_.get();
  first_->Begin(length);
}

asio::awaitable<Proposal> AutoDrafter::Take(v1::ItemTiming* timing) {
  v1::ItemTiming spent = std::exchange(unused_, {});
  Proposal proposal = co_await first_->Take(timing);
  proposed_ = proposal.size();
  if (!proposal.empty()) {
    spent.set_compute_us(spent.compute_us() + timing->compute_us());
    *timing = std::move(spent);
    co_return proposal;
  }
  last_ = second_.get();
  second_->Begin(length_);
  co_return co_await second_->Take(timing);
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

}  // namespace outrider
