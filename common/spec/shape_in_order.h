// The order of the controls that follow the penalties and masks. The one source for host and device.
#pragma once

#include "common/spec/host_device.h"
#include "common/spec/team/row_types.h"

namespace outrider {

// Turns logits into weights. Not for a greedy row.
//
// A Row is a row of finite logits, or of -infinity where a token is masked:
//   size()             tokens
//   KeepLargest(k)     removes all but the k largest logits
//   Exponentiate(t)    logits become the weights exp((logit - largest) * t)
//   KeepMass(p)        keeps the shortest prefix, the heaviest first, that has the share p of the sum
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
