// Chooses between two ways to make rounds by what each was measured to give.
#pragma once

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
  // A round's weight halves after about 140 more of its way.
  static constexpr double kDecay = 0.995;

  void EndTrial();

  RunningMean usual_{kDecay}, other_{kDecay};  // seconds per token
  bool other_is_better_ = false;
  bool trying_ = false;  // the worse way
  int rounds_left_ = 0;  // of the trial, or until the next
  int pause_ = 0;        // rounds from the end of a trial to the next
};

}  // namespace outrider
