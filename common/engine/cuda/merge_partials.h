// Merges the partial results of a row's attention. The same source on host and device.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/engine/decoder/narrow_floats.h"
#include "common/spec/host_device.h"

namespace outrider::cuda {

// The elements of a head that a thread merges: 16 bytes that are read at once, bfloat16 as their bits.
inline constexpr int kMergeElements = 8;
struct alignas(16) MergedElements {
  uint16_t bits[kMergeElements];
};

// out = sum_i 2^(s_i - m) o_i / sum_i 2^(s_i - m) over a row's partial results in order of position, with m =
// max s_i, for the kMergeElements columns from `column` on. `partials` is [*, heads * head_dim], `sums` has
// their s [*, heads], `out` is [rows, heads * head_dim]. Writes nothing for a row without partial results. A
// single one is copied to the bit, and therefore equals what a launch without merging writes.
OUTRIDER_HD inline void MergePartials(const uint16_t* partials, const float* sums, const int32_t* row_partial,
                                      const int32_t* row_splits, int heads, int head_dim, int64_t row,
                                      int column, uint16_t* out) {
  const int splits = row_splits[row];
  if (splits == 0) return;
  const int64_t width = int64_t{heads} * head_dim;
  const int64_t first = row_partial[row];
  sums += first * heads + column / head_dim;
  partials += first * width + column;

  float most = sums[0];
  for (int i = 1; i < splits; ++i) most = fmaxf(most, sums[int64_t{i} * heads]);
  float total = 0, merged[kMergeElements] = {};
  for (int i = 0; i < splits; ++i) {
    const float weight = exp2f(sums[int64_t{i} * heads] - most);
    total += weight;
    const MergedElements partial = *reinterpret_cast<const MergedElements*>(partials + i * width);
    for (int e = 0; e < kMergeElements; ++e) {
      merged[e] = fmaf(weight, FromBFloat16(partial.bits[e]), merged[e]);
    }
  }
  MergedElements result;
  for (int e = 0; e < kMergeElements; ++e) result.bits[e] = ToBFloat16(merged[e] / total);
  *reinterpret_cast<MergedElements*>(out + row * width + column) = result;
}

}  // namespace outrider::cuda
