// A weight matrix packed for the CPU kernels.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/engine/cpu/cpu_weights.h"
#include "common/engine/cpu/product.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/engine/matrix.h"
#include "common/engine/memory.h"

namespace outrider {

class CpuMatrix final : public Matrix {
 public:
  // Packs a copy of `weights`, [n, k]. `kernels` and `thread_pool` must outlive the matrix.
  // RESOURCE_EXHAUSTED if there is not enough memory.
  static absl::StatusOr<std::unique_ptr<Matrix>> Create(const TensorView& weights, Storage storage,
                                                        const Kernels& kernels, ThreadPool& thread_pool);

  absl::Status Multiply(absl::Span<const float> x, absl::Span<float> y) override;

 private:
  CpuMatrix(Buffer memory, const PackedMatrix& matrix, const Multiplier& multiplier)
      : memory_(std::move(memory)), matrix_(matrix), multiplier_(multiplier) {}

  const Buffer memory_;
  const PackedMatrix matrix_;
  const Multiplier multiplier_;
  std::vector<char> operands_;
};

}  // namespace outrider
