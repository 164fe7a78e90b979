// What drafting ahead did in a round.
#pragma once

#include <cstddef>

namespace outrider {

struct AheadReport {
  bool runs = false;         // the schedule was to draft while this round was verified
  int steps = 0;             // of the draft for what was verified, if it began while the round before was
  int branches = 0;          // outcomes of this round that were drafted for
  bool hit = false;          // its outcome was one of them
  size_t wasted_tokens = 0;  // drafted for outcomes that did not come, as far as the draft had answered
};

}  // namespace outrider
