// The granularity of rows in matrix products.
#pragma once

namespace outrider::cuda {

// Rows are padded to a multiple of this.
inline constexpr int kRowTile = 16;
inline constexpr int PaddedRows(int rows) { return (rows + kRowTile - 1) / kRowTile * kRowTile; }

}  // namespace outrider::cuda
