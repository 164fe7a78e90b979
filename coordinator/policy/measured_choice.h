// Chooses between ways to make rounds by what each was measured to give: between any two, and between chains
// and trees.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/spec/tree_shape.h"
#include "coordinator/generation/generation.h"
#include "coordinator/policy/measured_rounds.h"
#include "coordinator/servers/averages.h"

namespace outrider {

// The other way may be faster or slower than the usual one: drafting while the target verifies, for example,
// is faster where draft and target have processors of their own. The better way is used for many rounds. The
// other is tried for a few, the more rarely the more often it lost. One thread.
class MeasuredChoice {
 public:
  // Whether the next round takes the other way.
  bool Next();
  // Observes a round that gave `tokens` tokens in `seconds`. `other`: it took the other way.
  void Observe(bool other, double seconds, int tokens);

 private:
  void EndTrial();

  RunningMean usual_, other_;  // seconds per token
  bool other_is_better_ = false;
  bool trying_ = false;  // the worse way
  int rounds_left_ = 0;  // of the trial, or until the next
  int pause_ = 0;        // rounds from the end of a trial to the next
};

// Chooses between chains and trees for generations that run alone.
//
// A tree yields one token plus its accepted nodes. The child of rank r at depth d is accepted, if its parent
// is, as often as was seen lately. Of all budgets and depths (NodeBudget), the one with the best predicted
// rate is tried against the chain if it promises to be no slower, and whichever was measured to be faster is
// used (MeasuredChoice). One thread.
class TreeChoice {
 public:
  // Returns the tree to draft next, or nullopt for a chain, which is expected to yield `chain_rate` tokens
  // per second. A tree may have at most `depth` levels and `nodes` nodes.
  std::optional<DraftLength> Next(double chain_rate, const TreeCosts& costs, int depth, int nodes);

  // Observes a round for which Next was asked.
  void Observe(const RoundReport& round);

 private:
  static constexpr int kDepths = 4;  // deeper nodes count as the deepest of these
  static constexpr int kRanks = kMaxBudgetChildren;
  static constexpr double kShareDecay = 0.998;

  // The best tree, its tokens per second, and those of the best chain.
  struct Candidate {
    int nodes = 0, depth = 0;
    double rate = 0, chain_rate = 0;
  };
  Candidate Best(const TreeCosts& costs, int depth, int nodes);
  // Considers trees of that depth.
  void Compare(const std::vector<LikelyNode>& tree, int depth, const TreeCosts& costs, Candidate& best) const;
  // The chance that the child of that rank is accepted, if its parent is.
  double Stands(int depth, int rank) const;

  struct Share : RunningMean {
    Share() : RunningMean(kShareDecay) {}
  };
  std::array<std::array<Share, kRanks>, kDepths> accepted_;
  std::map<std::pair<int, int>, std::vector<LikelyNode>> trees_;  // by nodes and depth
  MeasuredChoice choice_;
};

}  // namespace outrider
