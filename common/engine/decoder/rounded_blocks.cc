#include "common/engine/decoder/rounded_blocks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/spec/status.h"

namespace outrider {

BlockReader RoundedBlocks(TensorView matrix) {
  return [matrix = std::move(matrix)](int64_t row, int64_t block, Block& to) {
    float values[kBlock];
    ReadElements(matrix, row * matrix.shape[1] + block * kBlock, kBlock, values);
    float largest = 0;
    bool finite = true;
    for (const float value : values) {
      finite = finite && std::isfinite(value);
      largest = std::max(largest, std::abs(value));
    }
    to.minimum = 0;
    to.scale = finite ? FromFloat16(ToFloat16(largest / 127)) : HUGE_VALF;
    const bool usable = std::isfinite(to.scale) && to.scale > 0;
    for (int i = 0; i < kBlock; ++i) {
      // The scale was rounded, so the largest level may exceed 127 by a fraction.
      const float level = usable ? std::clamp(std::nearbyint(values[i] / to.scale), -127.0f, 127.0f) : 0;
      to.levels[i] = static_cast<int8_t>(level);
    }
  };
}

std::optional<BlockFormat> RoundedTensors::BlocksOf(absl::string_view name,
                                                    absl::Span<const int64_t> shape) const {
  const bool fits = shape.size() == 2 && HasWholeBlocks(shape[1]) && source_.Check(name, shape).ok();
  return fits ? std::optional(kRoundedFormat) : std::nullopt;
}

absl::StatusOr<BlockReader> RoundedTensors::GetBlocks(absl::string_view name,
                                                      absl::Span<const int64_t> shape) const {
  return RoundedBlocks(OUTRIDER_TRY(source_.Get(name, shape)));
}

}  // namespace outrider
