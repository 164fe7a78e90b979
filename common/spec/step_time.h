// The measured time of a forward pass.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "common/spec/averages.h"

namespace outrider {

// The time of a forward pass by its number of rows. A further row costs little while the pass waits for
// memory, and its full time once arithmetic decides. So the time is linear only locally: passes count more,
// the nearer their number of rows is to the one in question (Cleveland 1979, "Robust locally weighted
// regression"), and the more recent they are. One thread.
class StepTime {
 public:
  // rows > 0.
  void Observe(uint32_t rows, double seconds) {
    for (Group& group : groups_) group.Age(kAgeing);
    groups_[std::min<size_t>(std::bit_width(rows - 1), groups_.size() - 1)].Add(rows, seconds);
  }

  // Seconds; 0 if nothing was observed. rows > 0.
  double Seconds(double rows) const {
    Group near;
    for (const Group& group : groups_) {
      if (group.weight() == 0) continue;
      near.Add(group, std::exp2(-kNear * std::abs(std::log2(rows / group.size()))));
    }
    return near.Seconds(rows);
  }

 private:
  static constexpr double kNear = 4;      // twice as many rows, or half, count 2^kNear times less
  static constexpr double kAgeing = 0.2;  // by each pass, in observations
  // Passes with 1 row, 2 rows, 3 to 4, 5 to 8, and so on.
  struct Group : LinearTime {
    Group() : LinearTime(0.2) {}  // at first a row is assumed to cost little
  };
  std::array<Group, 16> groups_;
};

}  // namespace outrider
