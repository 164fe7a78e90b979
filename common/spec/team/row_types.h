// Controls and results of a row of logits: plain data, the same on host and device.
#pragma once

#include <cstdint>

namespace outrider::team {

// The most tokens of a row: as many as the sums of row_select.h can hold.
inline constexpr int kMaxVocab = 1 << 19;

// The controls that follow the penalties and masks, in the types that rows are computed with.
struct RowControls {
  double top_p = 1;               // 1: off
  float inverse_temperature = 1;  // unused when greedy
  float min_p = 0;                // 0: off
  int32_t top_k = 0;              // 0: off
  int32_t greedy = 0;             // all mass on the largest logit
};

// A row after the controls: p(x) = weights[x] * (1 / total), or all mass on one token, and the row is still
// logits.
struct ShapedRow {
  double total;
  double entropy;      // in nats; 0 unless it was wanted
  int32_t point_mass;  // -1: none
  int32_t finite;      // 0: a logit was NaN or infinite, and nothing else here means anything
};

}  // namespace outrider::team
