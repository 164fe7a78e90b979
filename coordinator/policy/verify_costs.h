// The measured times of verifications.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <iterator>

#include "coordinator/generation/generation.h"
#include "coordinator/servers/averages.h"

namespace outrider {

// The time of a forward pass by its number of rows. A further row costs little while the pass waits for
// memory, and its full time once arithmetic decides. So a line of its own is fitted to 1 to 4 rows, 5 to 8,
// 9 to 16, and so on. One thread.
class StepTime {
 public:
  // rows > 0.
  void Observe(uint32_t rows, double seconds) {
    for (Line& line : lines_) line.Age(kAgeing);
    lines_[LineOf(rows)].Observe(rows, seconds);
  }

  // Seconds, by the line for that many rows or, if none were observed, by the nearest line for fewer, or else
  // for more. 0 if nothing was observed.
  double Seconds(double rows) const {
    const auto own = lines_.begin() + LineOf(static_cast<uint32_t>(rows));
    const auto known = [](const Line& line) { return line.known(); };
    const auto fewer = std::find_if(std::make_reverse_iterator(own + 1), lines_.rend(), known);
    const auto more = std::find_if(own, lines_.end(), known);
    if (fewer != lines_.rend()) return fewer->fixed() + fewer->per_unit() * rows;
    return more == lines_.end() ? 0 : more->fixed() + more->per_unit() * rows;
  }

 private:
  struct Line : LinearTime {
    Line() : LinearTime(0.2) {}  // at first a row is assumed to cost little
  };
  static constexpr int kLines = 12;
  static constexpr double kAgeing = 0.2;  // of every line by each observation of another, in observations
  static int LineOf(uint32_t rows) {
    return std::clamp(static_cast<int>(std::bit_width(std::max(rows, 1u) - 1)) - 2, 0, kLines - 1);
  }

  std::array<Line, kLines> lines_;
};

// What verifications cost. `running` is the number of generations in progress; those in a step share its
// time. One thread.
class VerifyCosts {
 public:
  void Observe(const RoundTimes& times, int running) {
    const v1::ItemTiming& verify = times.verify_server;
    if (verify.batch_rows() == 0) return;
    const double seconds = 1e-6 * verify.compute_us();
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
