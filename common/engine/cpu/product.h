// Matrix products on the CPU's threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/engine/cpu/cpu_weights.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/engine/model.h"
#include "common/engine/thread_pool.h"

namespace outrider {

struct Product {
  const PackedMatrix& matrix;
  Epilogue epilogue;
};

// Multiplies operands by weights. Not thread-safe, since a thread pool is not.
class Multiplier {
 public:
  // Both references must outlive the multiplier. `storage` is that of weights that are not in blocks.
  Multiplier(const Kernels& kernels, ThreadPool& thread_pool, Storage storage)
      : kernels_(kernels),
        thread_pool_(thread_pool),
        operand_bytes_(storage != Storage::kFloat32 && kernels.rounds_operands ? 2 : 4) {}

  size_t operand_bytes() const { return operand_bytes_; }  // of one element of an operand (kernels.h)

  // Converts elements to operands.
  void ToOperands(const float* from, int64_t count, char* to) const;

  // Calls fn for each row, in parallel if there are enough of them.
  void ForRows(int rows, absl::FunctionRef<void(int row)> fn) const;

  // `x` and `y` are as in LinearArgs; `next` is the product after this one.
  void Multiply(const Product& product, const Product& next, int rows, const char* x, char* y,
                int y_columns) const;

 private:
  // How a matrix product is divided into tasks. A task gets whole units. A unit is a panel or, for kSiluMul,
  // a gate panel and its up panel.
  struct Partition {
    int panels_per_unit;
    int units;
    int tasks;
    int FirstPanel(int task) const {
      return static_cast<int>(static_cast<int64_t>(task) * units / tasks) * panels_per_unit;
    }
  };
  Partition Divide(const Product& product, int rows) const;
  // Fills the vectors below for operands that are multiplied by weights in blocks.
  void PrepareBlocks(int rows, int k, const char* x) const;

  const Kernels& kernels_;
  ThreadPool& thread_pool_;
  const size_t operand_bytes_;
  mutable std::vector<int16_t> levels_;       // empty unless the kernels round blocks
  mutable std::vector<float> sums_, scales_;  // of blocks, as in LinearArgs
};

// Packs a copy of `weights`, [n, k], outside a model's weights, in this storage or, if `in_blocks` and the
// columns allow it, rounded to blocks of 8 bits. `kernels` and `thread_pool` must outlive the matrix.
// RESOURCE_EXHAUSTED if there is not enough memory.
absl::StatusOr<std::unique_ptr<Matrix>> LoadCpuMatrix(const TensorView& weights, Storage storage,
                                                      bool in_blocks, const Kernels& kernels,
                                                      ThreadPool& thread_pool);

}  // namespace outrider
