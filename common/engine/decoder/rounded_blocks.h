// Rounds matrices to blocks of 8 bits, as GGUF's Q8_0 does. For drafters: this changes what they propose, and
// the rows that they report, but not what the target answers.
#pragma once

#include "common/engine/decoder/tensor_source.h"

namespace outrider {

inline constexpr BlockFormat kRoundedFormat = {.bits = 8, .wide = false};

// Whether a matrix of these columns can be rounded.
inline bool HasWholeBlocks(int64_t columns) { return columns % kBlock == 0; }

// Reads the blocks of a matrix, [n, k] with whole blocks. Numbers that are not finite, or too large for
// float16 scales, give such numbers.
BlockReader RoundedBlocks(TensorView matrix);

// The tensors of a source, whose matrices with whole blocks are in blocks.
class RoundedTensors final : public TensorSource {
 public:
  // `source` must outlive it.
  explicit RoundedTensors(const TensorSource& source) : source_(source) {}

  using TensorSource::Get;
  absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const override {
    return source_.Get(name, shape);
  }
  absl::Status Check(absl::string_view name, absl::Span<const int64_t> shape) const override {
    return source_.Check(name, shape);
  }
  std::optional<BlockFormat> BlocksOf(absl::string_view name, absl::Span<const int64_t> shape) const override;
  absl::StatusOr<BlockReader> GetBlocks(absl::string_view name,
                                        absl::Span<const int64_t> shape) const override;

 private:
  const TensorSource& source_;
};

}  // namespace outrider
