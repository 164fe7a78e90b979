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
constexpr double kModelRounds = 128;
// One trial in so many is of a neighbour, unless that is known to be worse by this factor.
constexpr int kTryNeighbourEvery = 6;
constexpr double kNotWorthTrying = 0.93;
constexpr double kKnownRounds = 32;

}  // namespace

RunningMean& CommonLength::RateOf(int k) {
  std::vector<RunningMean>& rates = rates_[load_];
  while (static_cast<int>(rates.size()) <= k) rates.emplace_back(kDecay);
  return rates[k];
}

double CommonLength::Estimate(int k, absl::FunctionRef<double(int)> model) {
  const double in_use = RateOf(k_).mean(0);
  // Before anything is measured the model alone decides.
  if (in_use <= 0) return model(k);
  const double expected = model(k) * in_use / model(k_);
  const RunningMean& measured = RateOf(k);
  return (kModelRounds * expected + measured.sum()) / (kModelRounds + measured.weight());
}

int CommonLength::Choose(int most, absl::FunctionRef<double(int)> model) {
  int best = 0;
  for (int k = 1; k <= most; ++k) {
    if (Estimate(k, model) > Estimate(best, model)) best = k;
  }
  if (++trials_ % kTryNeighbourEvery != 0) return best;
  const int side = trials_ / kTryNeighbourEvery % 2 == 0 ? 1 : -1;
  for (const int neighbour : {best + side, best - side}) {
    if (neighbour < 0 || neighbour > most) continue;
    const bool known = RateOf(neighbour).weight() > kKnownRounds;
    if (!known || Estimate(neighbour, model) > kNotWorthTrying * Estimate(best, model)) return neighbour;
  }
  return best;
}

void CommonLength::EndTrial() {
  const double seconds = Seconds(ended_ - began_);
  RunningMean& mine = RateOf(k_);
  for (RunningMean& rate : rates_[load_]) {
    if (&rate != &mine) rate.Age(1);
  }
  if (seconds > 0) mine.Observe(tokens_ / seconds, measured_rounds_);
  measured_rounds_ = kNotBegun;
}

int CommonLength::Next(int running, int most, absl::FunctionRef<double(int)> model) {
  const int load = std::min(static_cast<int>(std::bit_width(static_cast<unsigned>(running))), kLoads) - 1;
  if (load != load_) Interrupt();
  if (measured_rounds_ != kNotBegun && measured_rounds_ < rounds_wanted_) return std::min(k_, most);
  if (measured_rounds_ != kNotBegun) EndTrial();
  load_ = load;
  k_ = Choose(most, model);
  rounds_wanted_ = std::max(kTrialRounds, kTrialRoundsEach * running);
  rounds_to_skip_ = running;
  measured_rounds_ = tokens_ = 0;
  return k_;
}

void CommonLength::OnRound(int tokens, Clock::time_point ended) {
  if (measured_rounds_ == kNotBegun) return;
  ended_ = ended;
  if (rounds_to_skip_ > 0) {
    --rounds_to_skip_;
    began_ = ended;
    return;
  }
  ++measured_rounds_;
  tokens_ += tokens;
}

}  // namespace outrider
