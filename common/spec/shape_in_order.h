// The controls that follow the penalties and masks, in the order in which they turn a row of logits into
// weights. Host and device share this source.
#pragma once

#include <cstdint>

#include "common/spec/types.h"

namespace outrider {
namespace team {

// The most tokens of a row: the sums of row_select.h can hold no more.
inline constexpr int kMaxVocab = 1 << 19;

// The controls, in the types that rows are computed with.
struct RowControls {
  double top_p = 1;               // 1: off
  float inverse_temperature = 1;  // unused when greedy
  float min_p = 0;                // 0: off
  int32_t top_k = 0;              // 0: off
  int32_t greedy = 0;             // all mass on the largest logit
};

// A row after the controls: p(x) = weights[x] * (1 / total). Or a point mass: all mass is on one token, and
// the row still holds logits.
struct ShapedRow {
  double total;
  double entropy;      // in nats; 0 unless it was wanted
  int32_t point_mass;  // -1: none
  int32_t finite;      // 0: a logit was NaN or infinite, and nothing else here means anything
};

}  // namespace team

// Turns logits into weights. Not for a greedy row.
//
// A Row holds finite logits, or -infinity where a token is masked. It has
//   size()             the number of tokens
//   KeepLargest(k)     removes all but the k largest logits
//   Exponentiate(t)    turns logits into the weights exp((logit - largest) * t)
//   KeepMass(p)        keeps the shortest prefix, heaviest first, that has at least the share p of the sum
//   RemoveBelow(bound) removes weights below the bound
template <class Row>
OUTRIDER_HD void ShapeInOrder(Row& row, const team::RowControls& controls) {
  if (controls.top_k > 0 && controls.top_k < row.size()) row.KeepLargest(controls.top_k);
  row.Exponentiate(controls.inverse_temperature);
  if (controls.top_p < 1) row.KeepMass(controls.top_p);
  // The heaviest weight is exp(0) = 1, so that min_p, which is relative to it, is the bound itself.
  if (controls.min_p > 0) row.RemoveBelow(controls.min_p);
}

}  // namespace outrider
