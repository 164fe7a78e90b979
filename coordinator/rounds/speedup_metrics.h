// What speculation gains, as counters: the time that rounds took for their tokens, with and without it.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/registry.h>

#include <array>

#include "coordinator/rounds/round_report.h"

namespace outrider {

// Only like is compared with like. Rounds are counted by the number of generations in progress, since they
// share forward passes. A plain round counts only when none of the others drafts either: it would wait for
// theirs. A round whose draft was asked and gave nothing counts as speculative, since that is what
// speculation cost. The prompts' rounds do not count.
//
// One thread.
class SpeedupMetrics {
 public:
  explicit SpeedupMetrics(prometheus::Registry& registry);

  void OnRound(const RoundReport& round);

 private:
  struct Counters {
    prometheus::Counter* seconds = nullptr;
    prometheus::Counter* tokens = nullptr;
  };
  // The largest number of generations of each group; the last group has the rest.
  static constexpr std::array<int, 7> kMostRunning = {1, 2, 4, 8, 16, 32, 64};
  using ByRunning = std::array<Counters, kMostRunning.size() + 1>;

  ByRunning plain_, speculative_;
  int plain_in_a_row_ = 0;
};

}  // namespace outrider
