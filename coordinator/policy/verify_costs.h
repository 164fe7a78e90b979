// The measured times of verifications.
#pragma once

#include <algorithm>
#include <array>

#include "common/spec/averages.h"
#include "common/spec/step_time.h"
#include "coordinator/generation/generation.h"

namespace outrider {

// The seconds that a server computed.
inline double ComputeSeconds(const v1::ItemTiming& timing) { return 1e-6 * timing.compute_us(); }

// What verifications cost. `running` is the number of generations in progress. A step's sequences, also those
// of other coordinators, share its time, so all coordinators of a target see one price of a row. One thread.
class VerifyCosts {
 public:
  void Observe(const RoundTimes& times, int running) {
    const v1::ItemTiming& verify = times.verify_server;
    if (verify.batch_rows() == 0) return;
    const double seconds = ComputeSeconds(verify);
    steps_.Observe(verify.batch_rows(), seconds);
    sequences_[running > 1].Observe(verify.batch_sequences());
    if (running == 1) wire_.Observe(Seconds(times.verify) - seconds);
  }

  // A generation's share of the seconds of verifying `k` drafted tokens of each, messages included. One that
  // runs alone waits for the whole step, as do other coordinators' generations, which choose as it does.
  double Share(int k, int running) const {
    const double sequences = std::max(sequences_[running > 1].mean(1), 1.0);
    const double step = steps_.Seconds(sequences * (k + 1));
    return running > 1 ? step / sequences + wire() / running : step + wire();
  }
  // The seconds that messages add for a generation that runs alone.
  double wire() const { return wire_.mean(0); }
  const StepTime& steps() const { return steps_; }

 private:
  StepTime steps_;
  std::array<RunningMean, 2> sequences_;  // of a step; if one generation runs, and if several do
  RunningMean wire_;
};

}  // namespace outrider
