// Chooses between lockstep and running ahead by what each was measured to give.
#pragma once

#include "coordinator/link/running_mean.h"

namespace outrider {

// Where draft and target have processors of their own, drafting while the target verifies is time won; where
// they share them it is time taken from the target. So the better one is used for many rounds, and the other
// is tried for a few now and then, the more rarely the more often it lost. One thread.
class ScheduleChoice {
 public:
  // Whether the next round runs ahead.
  bool Next();
  // A round that ran ahead, or did not, gave so many tokens in that time.
  void Observe(bool ahead, double seconds, int tokens);

 private:
  // A round counts half after about 140 more of its schedule.
  static constexpr double kDecay = 0.995;

  void EndTrial();

  RunningMean lockstep_{kDecay}, ahead_{kDecay};  // seconds a token
  bool better_ = false;                           // running ahead is the better one
  bool trying_ = false;                           // the other one
  int rounds_left_ = 0;                           // of the trial, or until the next
  int pause_ = 0;                                 // rounds from the end of a trial to the next
};

}  // namespace outrider
