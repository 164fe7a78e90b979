// What a link learns from answers of how busy a server is, and how fast.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include "common/net/event.h"
#include "coordinator/servers/averages.h"

namespace outrider {

// One thread.
class ServerPace {
 public:
  // A server that works is not silent for longer than this, or than so many times what its rows usually take:
  // those that are in flight, and those that others may have in a step, for all that is known.
  static constexpr auto kLeastSilence = std::chrono::seconds(3);
  static constexpr int kSilenceFactor = 4;
  static constexpr int kRowsOfOthers = 512;

  // A message says that so many items were at the server when it was written. Of these, `ours` are this
  // coordinator's: all that have no answer yet.
  void ObserveLoad(uint32_t load, int64_t ours) {
    load_ = load;
    load_of_others_.Observe(static_cast<double>(std::max<int64_t>(0, load - ours)));
  }
  // From an item to its answer, in a step of so many rows.
  void ObserveAnswer(Clock::duration took, int rows) {
    row_seconds_.Observe(Seconds(took) / std::max(rows, 1));
  }
  // Of another connection, which may be to another server.
  void ForgetLoad() { load_of_others_ = RunningMean(kLoadDecay); }

  // As it was said last, and a mean of what of it was others'; nothing before the server has said it.
  uint32_t load() const { return load_; }
  std::optional<double> load_of_others() const {
    if (load_of_others_.weight() == 0) return std::nullopt;
    return load_of_others_.mean(0);
  }

  // How long a server with so many rows in flight may be silent before it hangs. Nothing before it has
  // answered.
  std::optional<Clock::duration> LongestSilence(int rows) const {
    if (row_seconds_.weight() == 0) return std::nullopt;
    const std::chrono::duration<double> usual(kSilenceFactor * (rows + kRowsOfOthers) * row_seconds_.mean(0));
    return std::max<Clock::duration>(kLeastSilence, std::chrono::duration_cast<Clock::duration>(usual));
  }

 private:
  // With each observation that follows one counts so many times as much.
  static constexpr double kLoadDecay = 0.8;
  static constexpr double kTimeDecay = 0.95;

  RunningMean row_seconds_{kTimeDecay};
  RunningMean load_of_others_{kLoadDecay};
  uint32_t load_ = 0;
};

}  // namespace outrider
