// Chooses between chains and trees for generations that run alone.
#pragma once

#include <array>
#include <optional>

#include "common/spec/tree_shape.h"
#include "coordinator/link/running_mean.h"
#include "coordinator/rounds/measured_choice.h"
#include "coordinator/rounds/round_report.h"

namespace outrider {

// A tree yields 1 + sum over d of A_1 ... A_d tokens a round, where A_l is the chance that one of the
// children at depth l stands: the sum over ranks r of how often the r-th child did, which is learnt by depth
// and rank. The shape that yields most for the time that it would take is tried against the chain if it
// promises to be no slower, and whichever was measured to be faster is used (MeasuredChoice). One thread.
class TreeChoice {
 public:
  // What a round takes, in seconds.
  struct Costs {
    double round = 0;  // with nothing drafted, and the ways between the services
    double row = 0;    // each row of a verification
    double level = 0;  // a step of the draft
    double node = 0;   // each further node in a step of the draft
  };

  // The tree to draft next; nullopt: a chain, which is expected to yield `chain_rate` tokens a second.
  // `depth` and `nodes` are the most that a tree may have.
  std::optional<TreeShape> Next(double chain_rate, const Costs& costs, int depth, int nodes);

  // A round for which Next was asked.
  void Observe(const RoundReport& round);

 private:
  static constexpr int kDepths = 4;  // deeper nodes count as the deepest of these
  static constexpr int kRanks = 4;   // most children of a node
  static constexpr double kDecay = 0.998;

  // The best shape, and its tokens a second.
  struct Candidate {
    Branching shape;
    double rate = 0;
  };
  Candidate Best(const Costs& costs, int depth, int nodes) const;
  // Looks at all shapes that begin as `shape`, whose last level has `width` nodes, and is reached with the
  // chance `reached`. `tokens` and `seconds` are those of a round with it.
  struct Partial {
    Branching shape;
    int nodes = 0, width = 1;
    double reached = 1, tokens = 1, seconds = 0;
  };
  void Extend(const Partial& partial, const Costs& costs, int depth, int nodes, Candidate& best) const;
  // The chance that one of the first `children` at that depth stands.
  double Stands(int depth, int children) const;

  struct Share : RunningMean {
    Share() : RunningMean(kDecay) {}
  };
  std::array<std::array<Share, kRanks>, kDepths> accepted_;
  MeasuredChoice choice_;
};

}  // namespace outrider
