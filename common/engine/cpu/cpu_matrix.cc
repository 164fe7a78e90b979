#include "common/engine/cpu/cpu_matrix.h"

#include <utility>
#include <vector>

#include "common/engine/cpu/packing.h"

namespace outrider {

absl::StatusOr<std::unique_ptr<Matrix>> CpuMatrix::Create(const TensorView& weights, Storage storage,
                                                          const Kernels& kernels, ThreadPool& thread_pool) {
  const int n = static_cast<int>(weights.shape[0]), k = static_cast<int>(weights.shape[1]);
  absl::StatusOr<Buffer> memory = Buffer::Allocate(PackedBytes(n, k, storage), "a head");
  if (!memory.ok()) return memory.status();
  Pack(Concatenated({weights}), storage, thread_pool, memory->data());
  const PackedMatrix matrix{memory->data(), n, k};
  return std::unique_ptr<Matrix>(
      new CpuMatrix(*std::move(memory), matrix, Multiplier(kernels, thread_pool, storage)));
}

absl::Status CpuMatrix::Multiply(absl::Span<const float> x, absl::Span<float> y) {
  operands_.resize(x.size() * multiplier_.operand_bytes());
  multiplier_.ToOperands(x.data(), static_cast<int64_t>(x.size()), operands_.data());
  const Product product = {matrix_, Epilogue::kStore};
  multiplier_.Multiply(product, product, static_cast<int>(x.size()) / matrix_.k, operands_.data(), matrix_.k,
                       reinterpret_cast<char*>(y.data()), matrix_.n);
  return absl::OkStatus();
}

}  // namespace outrider
