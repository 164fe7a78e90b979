// Brings weights into the layout of the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/engine/cpu/kernels.h"
#include "common/engine/decoder/safetensors.h"
#include "common/engine/thread_pool.h"

namespace outrider {

// A weight matrix [n, k] whose rows come from one or more tensors; `kPaddingRow` rows are zero.
struct MatrixSource {
  static constexpr int kPaddingRow = -1;
  struct Row {
    int tensor;
    int row;
  };

  std::vector<TensorView> tensors;  // each [*, k], all of one type
  std::vector<Row> rows;            // n of them
  int k = 0;

  int n() const { return static_cast<int>(rows.size()); }
};

// All rows of all tensors, in order.
MatrixSource Concatenated(std::vector<TensorView> tensors);
// Panels of `first` and `second` ([n, k] each) alternating, each padded with zero rows: what
// Epilogue::kSiluMul takes.
MatrixSource InterleavedPanels(TensorView first, TensorView second);

// How much memory a packed matrix takes, a multiple of 64.
size_t PackedBytes(int n, int k, Storage storage);
// Packs into `to`, 64-byte aligned, as LinearArgs describes; bfloat16 and int8 round to nearest even.
void Pack(const MatrixSource& source, Storage storage, ThreadPool& pool, char* to);

}  // namespace outrider
