// How a token is drawn from a row, and which token a draft proposes: what is asked of rows and of random
// numbers, in which order. The one source for host and device.
//
// Noise is that of verify.h, or has the same functions: Decide, Test, and Race over a row().
#pragma once

#include <cstdint>

#include "common/spec/host_device.h"
#include "common/spec/random.h"
#include "common/spec/types.h"

namespace outrider {

// A token by sample(u), unless one has all of the row's mass.
template <class Sample, class Noise>
OUTRIDER_HD TokenId DrawToken(TokenId point_mass, Purpose purpose, uint64_t position, Noise& noise,
                              const Sample& sample) {
  if (point_mass >= 0) return point_mass;
  return noise.Decide(purpose, position, 0, sample);
}

// The coupled rule's token: the winner of the race, unless one has all of the row's mass.
template <class Row, class Noise>
OUTRIDER_HD TokenId RaceForToken(const Row& row, TokenId point_mass, uint64_t position, Noise& noise) {
  return point_mass >= 0 ? point_mass : noise.Race(position, row);
}

// The token that a draft proposes at `position`.
//
// A Draft is at one row, the draft's own distribution after the controls:
//   row()         the distribution
//   point_mass()  the token that has all of it; -1 if none has
//   MakeQ()       makes q of it: exactly what is sent to the target
//   Sample(u)     a token of q by inverse CDF, u in [0, 1); not where there is a point mass
template <class Draft, class Noise>
OUTRIDER_HD TokenId ProposeToken(Draft& draft, bool coupled, uint64_t position, Noise& noise) {
  if (coupled) return RaceForToken(draft.row(), draft.point_mass(), position, noise);
  draft.MakeQ();
  return DrawToken(draft.point_mass(), Purpose::kDraft, position, noise,
                   [&](double u) { return draft.Sample(u); });
}

}  // namespace outrider
