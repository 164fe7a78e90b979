#include "coordinator/drafters/target_drafter.h"

namespace outrider {
namespace {

// Leaves the nodes that have fewer than `depth` others before them. Which these are does not depend on the
// tokens, so that q stays what they were drawn from.
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

asio::awaitable<Proposal> TargetDrafter::Take(Generation& generation, v1::ItemTiming* timing) {
  TargetProposal held = std::exchange(held_, {});
  outcome_ = DraftOutcome::kUsable;
  if (n_ != generation.size()) co_return Proposal();
  outcome_ = held.outcome;
  *timing = held.timing;
  co_return CutToDepth(std::move(held.nodes), most_);
}

}  // namespace outrider
