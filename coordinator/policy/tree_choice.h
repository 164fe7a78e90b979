// Chooses between chains and trees for generations that run alone.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/spec/tree_shape.h"
#include "coordinator/generation/round_report.h"
#include "coordinator/policy/measured_choice.h"
#include "coordinator/policy/round_costs.h"
#include "coordinator/servers/averages.h"

namespace outrider {

// A tree yields one token and as many as there are nodes that stand. The child of rank r at depth d stands,
// if its parent does, as often as was seen lately. Of all budgets and depths (NodeBudget) the one that yields
// most for the time that it would take is tried against the chain if it promises to be no slower, and
// whichever was measured to be faster is used (MeasuredChoice). One thread.
class TreeChoice {
 public:
  // The tree to draft next; nullopt: a chain, which is expected to yield `chain_rate` tokens a second.
  // `depth` and `nodes` are the most that a tree may have.
  std::optional<DraftLength> Next(double chain_rate, const TreeCosts& costs, int depth, int nodes);

  // A round for which Next was asked.
  void Observe(const RoundReport& round);

 private:
  static constexpr int kDepths = 4;  // deeper nodes count as the deepest of these
  static constexpr int kRanks = kMaxBudgetChildren;
  static constexpr double kDecay = 0.998;

  // The best tree, its tokens a second, and those of the best chain.
  struct Candidate {
    int nodes = 0, depth = 0;
    double rate = 0, chain_rate = 0;
  };
  Candidate Best(const TreeCosts& costs, int depth, int nodes);
  // Looks at trees of that depth.
  void Compare(const std::vector<LikelyNode>& tree, int depth, const TreeCosts& costs, Candidate& best) const;
  // The chance that the child of that rank stands, if its parent does.
  double Stands(int depth, int rank) const;

  struct Share : RunningMean {
    Share() : RunningMean(kDecay) {}
  };
  std::array<std::array<Share, kRanks>, kDepths> accepted_;
  std::map<std::pair<int, int>, std::vector<LikelyNode>> trees_;  // by nodes and depth
  MeasuredChoice choice_;
};

}  // namespace outrider
