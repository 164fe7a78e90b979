#include "coordinator/rounds/tree_choice.h"

#include <algorithm>
#include <utility>

#include "coordinator/rounds/offered_nodes.h"

namespace outrider {
namespace {

// As so many observations counts what ChildStands says of children that were not offered often yet.
constexpr double kPriorWeight = 8;
// A shape is tried if it promises at least so much of the chain's rate: times of shapes are known less well.
constexpr double kWorthATrial = 0.95;
// Beyond this depth little is left to gain.
constexpr int kMostLevels = 6;

}  // namespace

double TreeChoice::Stands(int depth, int children) const {
  const auto& ranks = accepted_[static_cast<size_t>(std::min(depth, kDepths - 1))];
  double stands = 0, first = kFirstChildStands;
  for (int rank = 0; rank < children; ++rank) {
    const Share& share = ranks[static_cast<size_t>(rank)];
    stands += (share.sum() + kPriorWeight * ChildStands(rank, first)) / (share.weight() + kPriorWeight);
    if (rank == 0) first = stands;
  }
  return std::min(stands, 1.0);
}

void TreeChoice::Extend(const Partial& partial, const Costs& costs, int depth, int nodes,
                        Candidate& best) const {
  const int level = static_cast<int>(partial.shape.children.size());
  if (level == std::min(depth, kMostLevels)) return;
  const int most = level == 0 ? kRanks : partial.shape.children.back();
  for (int children = 1; children <= most; ++children) {
    Partial next = partial;
    next.width *= children;
    next.nodes += next.width;
    if (next.nodes > nodes) return;
    next.shape.children.push_back(children);
    next.reached *= Stands(level, children);
    next.tokens += next.reached;
    next.seconds += costs.level + costs.node * (partial.width - 1) + costs.row * next.width;
    const bool is_chain = next.width == 1;
    if (!is_chain && next.tokens / next.seconds > best.rate) best = {next.shape, next.tokens / next.seconds};
    Extend(next, costs, depth, nodes, best);
  }
}

TreeChoice::Candidate TreeChoice::Best(const Costs& costs, int depth, int nodes) const {
  Candidate best;
  Partial none;
  none.seconds = costs.round + costs.row;
  Extend(none, costs, depth, nodes, best);
  return best;
}

std::optional<TreeShape> TreeChoice::Next(double chain_rate, const Costs& costs, int depth, int nodes) {
  const bool tries_a_tree = choice_.Next();
  if (!tries_a_tree) return std::nullopt;
  Candidate best = Best(costs, depth, nodes);
  if (best.rate < kWorthATrial * chain_rate) return std::nullopt;
  return std::move(best.shape);
}

void TreeChoice::Observe(const RoundReport& round) {
  for (const OfferedNode& node : OfferedNodes(*round.proposal, round.verdict->path)) {
    if (node.rank >= kRanks) continue;
    accepted_[static_cast<size_t>(std::min(node.depth, kDepths - 1))][static_cast<size_t>(node.rank)].Observe(
        node.accepted ? 1 : 0);
  }
  choice_.Observe(!IsChain(*round.proposal), Seconds(round.times.round), round.emitted);
}

}  // namespace outrider
