// The number of tokens that several generations draft in step.
#pragma once

#include <array>
#include <vector>

#include "absl/functional/function_ref.h"
#include "coordinator/event.h"
#include "coordinator/running_mean.h"

namespace outrider {

// Generations that share forward passes slow each other down in ways that no model of ours foretells: so the
// time of a round is measured, for each K while all took it, with about so many generations. For a K that was
// not tried lately a model stands in, scaled to agree with what was measured of the K in use. Now and then a K
// next to the best is tried.
//
// One thread.
class CommonLength {
 public:
  // What is expected of a K: the tokens that a round yields, and its time up to a constant factor; > 0.
  struct Model {
    absl::FunctionRef<double(int)> tokens;
    absl::FunctionRef<double(int)> seconds;
  };

  // K for a round that begins now, at most `most`, with `running` >= 2 generations.
  int Next(int running, int most, const Model& model);

  // A round that Next was asked for has ended.
  void OnRound(Clock::time_point ended);

  // What Next said last.
  int in_use() const { return k_; }

  // What is being measured is not worth keeping: fewer generations run.
  void Interrupt() { measured_rounds_ = kNotBegun; }

 private:
  // By the number of generations: 2-3, 4-7, 8-15, ...
  static constexpr int kLoads = 16;
  static constexpr int kNotBegun = -1;

  RunningMean& SecondsOf(int k);
  void EndTrial();
  // Tokens a second.
  double Rate(int k, const Model& model);
  int Choose(int most, const Model& model);

  std::array<std::vector<RunningMean>, kLoads> seconds_;  // [load][k] of a round, weighed by rounds
  int load_ = 0;
  int k_ = 0;       // that all take
  int trials_ = 0;
  // Of the trial that is running.
  int rounds_wanted_ = 0;
  int rounds_to_skip_ = 0;  // they began with another K
  int measured_rounds_ = kNotBegun;
  Clock::time_point began_, ended_;
};

}  // namespace outrider
