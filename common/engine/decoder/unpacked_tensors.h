// The weights of a quantised checkpoint, unpacked to float32.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/engine/decoder/model_config.h"
#include "common/engine/decoder/safetensors.h"
#include "common/engine/decoder/tensor_source.h"

namespace outrider {

// Unpacks a matrix when it is requested. Scale times level is exact in float32, unless the scale itself is
// float32; the product is then rounded once. The memory belongs to the view. Thread-safe.
class UnpackedTensors final : public TensorSource {
 public:
  // `stored` must outlive it.
  UnpackedTensors(const SafeTensors& stored, const Quantization& quantization)
      : stored_(stored), quantization_(quantization) {}

  using TensorSource::Get;
  // Unquantised tensors (norms, biases, modules that were left out) are returned as `stored` has them. For a
  // packed `module`.weight, the tensors beside it are also checked: INVALID_ARGUMENT if one is missing, has
  // another shape or type, or holds an invalid value (a scale that is not a number, a group that does not
  // exist). RESOURCE_EXHAUSTED if there is not enough memory.
  absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const override;
  absl::Status Check(absl::string_view name, absl::Span<const int64_t> shape) const override;
  // Supports matrices of integer levels in which no block has columns of two groups. A reader keeps all
  // levels of its matrix in memory, as floats.
  std::optional<BlockFormat> BlocksOf(absl::string_view name, absl::Span<const int64_t> shape) const override;
  absl::StatusOr<BlockReader> GetBlocks(absl::string_view name,
                                        absl::Span<const int64_t> shape) const override;

 private:
  const SafeTensors& stored_;
  const Quantization quantization_;
};

// The functions below (unpack.cc) write the levels of a matrix [rows, columns], row by row, as floats. A
// word holds 32 / bits unsigned levels of 4 or 8 bits, the first in the lowest bits.

// Each byte is a level. `LevelsOfFloat8` reads E4M3, which may be NaN.
void LevelsOfInt8(absl::string_view bytes, float* to);
void LevelsOfFloat8(absl::string_view bytes, float* to);
// Words lie along rows: [rows, ceil(columns * bits / 32)]. The layout of compressed-tensors' levels and
// GPTQ's zero points.
void LevelsAlongRows(const uint32_t* words, int64_t rows, int64_t columns, int bits, float* to);
// Words lie along columns of the transposed matrix: [ceil(columns * bits / 32), rows]. The layout of GPTQ's
// levels.
void LevelsAlongColumns(const uint32_t* words, int64_t rows, int64_t columns, int bits, float* to);
// AWQ's layout, [columns, rows / 8]: a word has eight rows of a column, in the order 0, 2, 4, 6, 1, 3, 5, 7.
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
