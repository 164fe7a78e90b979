// What a link learns from answers about a server's load and speed.
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
  // A working server is silent no longer than this, or than this multiple of the usual time for its rows:
  // those in flight, and those that others may have in the step.
  static constexpr auto kLeastSilence = std::chrono::seconds(3);
  static constexpr int kSilenceFactor = 4;
  static constexpr int kRowsOfOthers = 512;

  // Observes that `load` items were at the server when it wrote a message. `ours` of them are this
  // coordinator's: all its unanswered ones.
  void ObserveLoad(uint32_t load, int64_t ours) {
    load_ = load;
    load_of_others_.Observe(static_cast<double>(std::max<int64_t>(0, load - ours)));
  }
  // Observes an item that took so long, in a step of `rows` rows.
  void ObserveAnswer(Clock::duration took, int rows) {
    row_seconds_.Observe(Seconds(took) / std::max(rows, 1));
  }
  // Call for a new connection, which may be to another server.
  void ForgetLoad() { load_of_others_ = RunningMean(kLoadDecay); }

  // The load last reported, and the mean part of it that was others'; nothing before the first report.
  uint32_t load() const { return load_; }
  std::optional<double> load_of_others() const {
    if (load_of_others_.weight() == 0) return std::nullopt;
    return load_of_others_.mean(0);
  }

  // How long a server with `rows` rows in flight may be silent before it hangs; nothing before its first
  // answer.
  std::optional<Clock::duration> LongestSilence(int rows) const {
    if (row_seconds_.weight() == 0) return std::nullopt;
    const std::chrono::duration<double> usual(kSilenceFactor * (rows + kRowsOfOthers) * row_seconds_.mean(0));
    return std::max<Clock::duration>(kLeastSilence, std::chrono::duration_cast<Clock::duration>(usual));
  }

 private:
  // Each observation multiplies the weight of the earlier ones by this.
  static constexpr double kLoadDecay = 0.8;
  static constexpr double kTimeDecay = 0.95;

  RunningMean row_seconds_{kTimeDecay};
  RunningMean load_of_others_{kLoadDecay};
  uint32_t load_ = 0;
};

}  // namespace outrider
