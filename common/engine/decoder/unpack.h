// Converts quantised weights to float32: unpacks levels from bytes and words, and scales them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

namespace outrider {

// The functions below write the levels of a matrix [rows, columns], row by row, as floats. Words hold 32 /
// bits levels of 4 or 8 bits, unsigned, the first in the lowest bits.

// A byte each. `LevelsOfFloat8` reads E4M3, which may be NaN.
void LevelsOfInt8(absl::string_view bytes, float* to);
void LevelsOfFloat8(absl::string_view bytes, float* to);
// Words lie along rows: [rows, ceil(columns * bits / 32)]. The layout of compressed-tensors' levels and
// GPTQ's zero points.
void LevelsAlongRows(const uint32_t* words, int64_t rows, int64_t columns, int bits, float* to);
// Words lie along columns of the transposed matrix: [ceil(columns * bits / 32), rows]. The layout of GPTQ's
// levels.
void LevelsAlongColumns(const uint32_t* words, int64_t rows, int64_t columns, int bits, float* to);
// AWQ's: words [columns, rows / 8] hold eight rows of a column, 0, 2, 4, 6, 1, 3, 5 and 7, in 4 bits each.
void LevelsOfAwq(const uint32_t* words, int64_t rows, int64_t columns, float* to);

// The matrix [rows, columns] transposed; nothing if it is empty.
std::vector<float> Transposed(const std::vector<float>& matrix, int64_t rows, int64_t columns);

struct Scaling {
  std::vector<float> scales;       // [rows, groups]
  std::vector<float> zero_points;  // likewise; empty: they are 0
  int64_t groups = 1;
  std::vector<int32_t> group_of;  // [columns]
};

// Each level becomes scale * (level - zero point).
void ScaleLevels(const Scaling& scaling, int64_t rows, int64_t columns, float* levels);

}  // namespace outrider
