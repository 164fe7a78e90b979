// Whether searches draft at all.
#pragma once

#include <map>

#include "coordinator/rounds/measured_choice.h"

namespace outrider {

// Learns over all searches of a width how many steps a second a round gives with and without a draft. One
// thread.
class BeamChoice {
 public:
  // Whether the next round of such a search is to draft.
  bool Drafts(int width) { return !choices_[width].Next(); }
  // What it gave.
  void Observe(int width, bool drafted, double seconds, int steps) {
    choices_[width].Observe(!drafted, seconds, steps);
  }

 private:
  std::map<int, MeasuredChoice> choices_;
};

}  // namespace outrider
