// Packs weights into the layout of the CPU kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/engine/cpu/kernels.h"
#include "common/engine/decoder/safetensors.h"
#include "common/engine/thread_pool.h"

namespace outrider {

// A weight matrix [n, k] whose rows come from one or more tensors; rows with `kPaddingRow` are zero.
struct MatrixSource {
  static constexpr int kPaddingRow = -1;
  struct Row {
    int tensor;
    int row;
  };

  std::vector<TensorView> tensors;  // each [*, k], all of the same type
  std::vector<Row> rows;            // n of them
  int k = 0;

  int n() const { return static_cast<int>(rows.size()); }
};

// The rows of all tensors, in order.
MatrixSource Concatenated(std::vector<TensorView> tensors);
// Alternating panels of `first` and `second` ([n, k] each), each padded with zero rows: the layout for
// Epilogue::kSiluMul.
MatrixSource InterleavedPanels(TensorView first, TensorView second);

inline int RoundUp(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// The size of a packed matrix in bytes, a multiple of 64.
size_t PackedBytes(int n, int k, Storage storage);
// Packs into `to`, which is 64-byte aligned, as LinearArgs describes. bfloat16 and int8 round to nearest
// even.
void Pack(const MatrixSource& source, Storage storage, ThreadPool& pool, char* to);

}  // namespace outrider
