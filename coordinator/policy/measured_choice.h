// Chooses between two ways to make rounds by what each was measured to give.
#pragma once

#include "coordinator/servers/averages.h"

namespace outrider {

// One way is the usual one; the other may be faster or slower, as drafting while the target verifies is
// faster where draft and target have processors of their own. The better way is used for many rounds. The
// other is tried for a few, the more rarely the more often it lost. One thread.
class MeasuredChoice {
 public:
  // Whether the next round goes the other way.
  bool Next();
  // A round gave `tokens` tokens in that time. `other`: it went the other way.
  void Observe(bool other, double seconds, int tokens);

 private:
  // A round counts half after about 140 more of its way.
  static constexpr double kDecay = 0.995;

  void EndTrial();

  RunningMean usual_{kDecay}, other_{kDecay};  // seconds a token
  bool other_is_better_ = false;
  bool trying_ = false;  // the worse one
  int rounds_left_ = 0;  // of the trial, or until the next
  int pause_ = 0;        // rounds from the end of a trial to the next
};

}  // namespace outrider
