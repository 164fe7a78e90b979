// The measured time of a forward pass.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <iterator>

#include "common/spec/averages.h"

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

}  // namespace outrider
