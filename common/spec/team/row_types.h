// What is said about a row of logits. Plain data, the same on host and device.
#pragma once

#include <cstdint>

namespace outrider::team {

// Most tokens of a row: as many as the sums of row_select.h have room for.
inline constexpr int kMaxVocab = 1 << 19;

// The controls that follow the penalties and masks, in the numbers that rows are computed with.
struct RowControls {
  double top_p = 1;               // 1: off
  float inverse_temperature = 1;  // unused when greedy
  float min_p = 0;                // 0: off
  int32_t top_k = 0;              // 0: off
  int32_t greedy = 0;             // all mass on the largest logit
};

// A row after them: p(x) = weights[x] * (1 / total), or all mass on one token; then the row is still logits.
struct ShapedRow {
  double total;
  double entropy;      // in nats; 0 unless it was wanted
  int32_t point_mass;  // -1: none
  int32_t finite;      // 0: a logit was NaN or infinite, and nothing else here means anything
};

}  // namespace outrider::team
