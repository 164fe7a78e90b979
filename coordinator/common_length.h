// The number of tokens that several generations draft in step.
#pragma once

#include <array>
#include <vector>

#include "absl/functional/function_ref.h"
#include "coordinator/event.h"
#include "coordinator/running_mean.h"

namespace outrider {

// Generations that share forward passes slow each other down in ways that no model of ours foretells: so K is
// chosen by the tokens a second that came out while all took it, for about so many generations. For a K that
// was not tried lately a model stands in, scaled to agree with what was measured of the K in use. Now and then
// a K next to the best is tried.
//
// One thread.
class CommonLength {
 public:
  // K for a round that begins now, at most `most`, with `running` >= 2 generations. `model(k)` is the rate
  // that is expected of k, up to a constant factor; > 0.
  int Next(int running, int most, absl::FunctionRef<double(int)> model);

  // A round that Next was asked for has ended and committed so many tokens.
  void OnRound(int tokens, Clock::time_point ended);

  // What Next said last.
  int in_use() const { return k_; }

  // What is being measured is not worth keeping: fewer generations run.
  void Interrupt() { measured_rounds_ = kNotBegun; }

 private:
  // By the number of generations: 2-3, 4-7, 8-15, ...
  static constexpr int kLoads = 16;
  static constexpr int kNotBegun = -1;

  RunningMean& RateOf(int k);
  void EndTrial();
  double Estimate(int k, absl::FunctionRef<double(int)> model);
  int Choose(int most, absl::FunctionRef<double(int)> model);

  std::array<std::vector<RunningMean>, kLoads> rates_;  // [load][k], weighed by rounds
  int load_ = 0;
  int k_ = 0;       // that all take
  int trials_ = 0;
  // Of the trial that is running.
  int rounds_wanted_ = 0;
  int rounds_to_skip_ = 0;  // they began with another K
  int measured_rounds_ = kNotBegun;
  int tokens_ = 0;
  Clock::time_point began_, ended_;
};

}  // namespace outrider
