// The measured times of verifications.
#pragma once

#include <algorithm>

#include "common/spec/averages.h"
#include "common/spec/step_time.h"
#include "coordinator/generation/generation.h"

namespace outrider {

// The seconds that a server computed.
inline double ComputeSeconds(const v1::ItemTiming& timing) { return 1e-6 * timing.compute_us(); }

// What verifications cost. `running` is the number of generations in progress; those in a step share its
// time. One thread.
class VerifyCosts {
 public:
  void Observe(const RoundTimes& times, int running) {
    const v1::ItemTiming& verify = times.verify_server;
    if (verify.batch_rows() == 0) return;
    const double seconds = ComputeSeconds(verify);
    steps_.Observe(verify.batch_rows(), seconds);
    sequences_.Observe(verify.batch_sequences());
    if (running == 1) wire_.Observe(Seconds(times.verify) - seconds);
  }

  // A generation's share of the seconds of verifying `k` drafted tokens of each, messages included.
  double Share(int k, int running) const {
    const double sequences = running <= 1 ? 1 : std::max(sequences_.mean(1), 1.0);
    return steps_.Seconds(sequences * (k + 1)) / sequences + wire() / std::max(running, 1);
  }
  // The seconds that messages add for a generation that runs alone.
  double wire() const { return wire_.mean(0); }
  const StepTime& steps() const { return steps_; }

 private:
  StepTime steps_;
  RunningMean sequences_;  // of a step
  RunningMean wire_;
};

}  // namespace outrider
