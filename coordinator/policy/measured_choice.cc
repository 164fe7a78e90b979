#include "coordinator/policy/measured_choice.h"

#include <algorithm>

namespace outrider {
namespace {

// Rounds of a trial. The times of so few differ by a few percent by chance.
constexpr int kTrial = 16;
constexpr double kClearlyBetter = 0.97;
// A trial of the worse one takes at most a ninth of the rounds, and a 65th in the end.
constexpr int kFirstPause = 8 * kTrial;
constexpr int kLongestPause = 64 * kTrial;

// ChildStands counts as this many observations of a child.
constexpr double kPriorWeight = 8;
// A tree is tried if it promises this share of the chain's measured rate, since its times are known less
// well, and this many times what the same reckoning promises of a chain.
constexpr double kWorthATrial = 0.95;
constexpr double kMoreThanAChain = 1.02;
// Larger trees gain little.
constexpr int kMostLevels = 12;
constexpr int kMostNodes = 128;

}  // namespace

bool MeasuredChoice::Next() {
  if (pause_ == 0) {
    // Nothing is known yet, and the first rounds are slow for other reasons.
    pause_ = kFirstPause;
    rounds_left_ = kTrial;
  }
  if (rounds_left_-- == 0) {
    if (trying_) {
      EndTrial();
    } else {
      rounds_left_ = kTrial - 1;
      trying_ = true;
      // Measurements from long ago do not compare with the present.
      (other_is_better_ ? usual_ : other_) = RunningMean();
    }
  }
  return other_is_better_ != trying_;
}

void MeasuredChoice::EndTrial() {
  const double present = (other_is_better_ ? other_ : usual_).mean(0);
  const double tried = (other_is_better_ ? usual_ : other_).mean(present);
  trying_ = false;
  if (tried < kClearlyBetter * present) {
    other_is_better_ = !other_is_better_;
    pause_ = kFirstPause;
  } else {
    pause_ = std::min(2 * pause_, kLongestPause);
  }
  rounds_left_ = pause_ - 1;
}

void MeasuredChoice::Observe(bool other, double seconds, int tokens) {
  if (tokens > 0) (other ? other_ : usual_).Observe(seconds / tokens, tokens);
}

double TreeChoice::Stands(int depth, int rank) const {
  const auto& ranks = accepted_[std::min(depth, kDepths - 1)];
  const double first = ranks[0].Learnt(kFirstChildStands, kPriorWeight);
  return rank == 0 ? first : ranks[rank].Learnt(ChildStands(rank, first), kPriorWeight);
}

void TreeChoice::Compare(const std::vector<LikelyNode>& tree, int depth, const TreeCosts& costs,
                         Candidate& best) const {
  std::array<std::array<double, kRanks>, kMostLevels> stands;
  for (int level = 0; level < depth; ++level) {
    for (int rank = 0; rank < kRanks; ++rank) stands[level][rank] = Stands(level, rank);
  }
  std::vector<double> reached;
  std::array<int, kMostLevels> widths = {};
  double tokens = 1, seconds = costs.round + costs.row;
  bool is_chain = true;
  for (const LikelyNode& node : tree) {
    reached.push_back((node.parent < 0 ? 1 : reached[node.parent]) * stands[node.level][node.rank]);
    tokens += reached.back();
    // Nodes at one depth are a step of the draft, and rows of the next one.
    const bool opens_level = widths[node.level]++ == 0;
    const bool is_fed = node.level + 1 < depth;
    seconds += costs.row + (opens_level ? costs.level : is_fed ? costs.node : 0);
    is_chain = is_chain && node.rank == 0;
    const bool is_as_deep = widths[depth - 1] > 0;
    if (is_chain) {
      best.chain_rate = std::max(best.chain_rate, tokens / seconds);
    } else if (is_as_deep && tokens > best.rate * seconds) {
      best.nodes = static_cast<int>(reached.size());
      best.depth = depth;
      best.rate = tokens / seconds;
    }
  }
}

TreeChoice::Candidate TreeChoice::Best(const TreeCosts& costs, int depth, int nodes) {
  Candidate best;
  nodes = std::min(nodes, kMostNodes);
  for (int d = 1; d <= std::min(depth, kMostLevels); ++d) {
    const auto [tree, is_new] = trees_.try_emplace({nodes, d});
    if (is_new) tree->second = LikeliestNodes(nodes, d);
    Compare(tree->second, d, costs, best);
  }
  return best;
}

std::optional<DraftLength> TreeChoice::Next(double chain_rate, const TreeCosts& costs, int depth, int nodes) {
  if (!choice_.Next()) return std::nullopt;
  const Candidate best = Best(costs, depth, nodes);
  if (best.nodes == 0 || best.rate < std::max(kWorthATrial * chain_rate, kMoreThanAChain * best.chain_rate))
    return std::nullopt;
  return DraftLength{.most = best.depth, .tree = NodeBudget{best.nodes}};
}

void TreeChoice::Observe(const RoundReport& round) {
  for (const OfferedNode& node : OfferedNodes(*round.proposal, round.verdict->path)) {
    if (node.rank >= kRanks) continue;
    accepted_[std::min(node.depth, kDepths - 1)][node.rank].Observe(node.accepted ? 1 : 0);
  }
  choice_.Observe(!IsChain(*round.proposal), Seconds(round.times.round), round.emitted);
}

}  // namespace outrider
