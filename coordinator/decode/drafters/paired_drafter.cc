#include "coordinator/decode/drafters/paired_drafter.h"

namespace outrider {

asio::awaitable<Proposal> PairedDrafter::Take(v1::ItemTiming* timing) {
  v1::ItemTiming of_second;
  Proposal tree = co_await first_->Take(timing);
  Proposal second = co_await second_->Take(&of_second);
  if (of_second.compute_us() > timing->compute_us()) *timing = of_second;
  of_first_ = static_cast<int>(tree.size());
  for (ProposalNode& node : second) {
    if (node.parent >= 0) node.parent += of_first_;
    tree.push_back(std::move(node));
  }
  co_return tree;
}

void PairedDrafter::OnVerdict(size_t n, const Verdict& verdict) {
  Verdict of_first, of_second;
  for (const int node : verdict.path) {
    if (node < of_first_) {
      of_first.path.push_back(node);
    } else {
      of_second.path.push_back(node - of_first_);
    }
  }
  of_first.token = of_second.token = verdict.token;
  first_->OnVerdict(n, of_first);
  second_->OnVerdict(n, of_second);
}

}  // namespace outrider
