#include "coordinator/common_length.h"

#include <algorithm>
#include <bit>

namespace outrider {
namespace {

// Rounds of a trial: at least so many, and of each generation.
constexpr int kTrialRounds = 64;
constexpr int kTrialRoundsEach = 8;
// What was measured counts half after 35 more trials.
constexpr double kDecay = 0.98;
// So many rounds of measuring weigh as much as the model.
constexpr double kModelRounds = 16;
// One trial in so many is of a neighbour, unless that is known to be worse by this factor.
constexpr int kTryNeighbourEvery = 6;
constexpr double kNotWorthTrying = 0.93;
constexpr double kKnownRounds = 32;

}  // namespace

RunningMean& CommonLength::SecondsOf(int k) {
  std::vector<RunningMean>& seconds = seconds_[load_];
  while (static_cast<int>(seconds.size()) <= k) seconds.emplace_back(kDecay);
  return seconds[k];
}

double CommonLength::Rate(int k, const Model& model) {
  const double in_use = SecondsOf(k_).mean(0);
  // Before anything is measured the model alone decides.
  if (in_use <= 0) return model.tokens(k) / model.seconds(k);
  const double expected = model.seconds(k) * in_use / model.seconds(k_);
  const RunningMean& measured = SecondsOf(k);
  return model.tokens(k) * (kModelRounds + measured.weight()) / (kModelRounds * expected + measured.sum());
}

int CommonLength::Choose(int most, const Model& model) {
  int best = 0;
  for (int k = 1; k <= most; ++k) {
    if (Rate(k, model) > Rate(best, model)) best = k;
  }
  if (++trials_ % kTryNeighbourEvery != 0) return best;
  const int side = trials_ / kTryNeighbourEvery % 2 == 0 ? 1 : -1;
  for (const int neighbour : {best + side, best - side}) {
    if (neighbour < 0 || neighbour > most) continue;
    const bool known = SecondsOf(neighbour).weight() > kKnownRounds;
    if (!known || Rate(neighbour, model) > kNotWorthTrying * Rate(best, model)) return neighbour;
  }
  return best;
}

void CommonLength::EndTrial() {
  RunningMean& mine = SecondsOf(k_);
  for (RunningMean& other : seconds_[load_]) {
    if (&other != &mine) other.Age(1);
  }
  mine.Observe(Seconds(ended_ - began_) / measured_rounds_, measured_rounds_);
  measured_rounds_ = kNotBegun;
}

int CommonLength::Next(int running, int most, const Model& model) {
  const int load = std::min(static_cast<int>(std::bit_width(static_cast<unsigned>(running))), kLoads) - 1;
  if (load != load_) Interrupt();
  if (measured_rounds_ != kNotBegun && measured_rounds_ < rounds_wanted_) return std::min(k_, most);
  if (measured_rounds_ != kNotBegun) EndTrial();
  load_ = load;
  k_ = Choose(most, model);
  rounds_wanted_ = std::max(kTrialRounds, kTrialRoundsEach * running);
  rounds_to_skip_ = running;
  measured_rounds_ = 0;
  return k_;
}

void CommonLength::OnRound(Clock::time_point ended) {
  if (measured_rounds_ == kNotBegun) return;
  ended_ = ended;
  if (rounds_to_skip_ > 0) {
    --rounds_to_skip_;
    began_ = ended;
    return;
  }
  ++measured_rounds_;
}

}  // namespace outrider
