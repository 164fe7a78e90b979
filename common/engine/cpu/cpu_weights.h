// The weights of a decoder, packed for the CPU kernels.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/engine/memory.h"
#include "common/engine/thread_pool.h"

namespace outrider {

// A weight matrix [n, k] whose rows come from one or more tensors; rows with `kPaddingRow` are zero.
struct MatrixSource {
  static constexpr int kPaddingRow = -1;
  struct Row {
    int tensor;
    int row;
  };

  std::vector<TensorView> tensors;  // each [*, k], all of one type; none if `blocks` has their readers
  std::vector<BlockReader> blocks;
  std::vector<Row> rows;  // n of them
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
// even. For a storage in blocks, the source must have `blocks` that fit the storage.
void Pack(const MatrixSource& source, Storage storage, ThreadPool& pool, char* to);

struct PackedMatrix {
  const char* data = nullptr;
  int n = 0;  // with padding if panels are interleaved
  int k = 0;
  Storage storage = Storage::kFloat32;
};

// Reads row `row` of a matrix in blocks into `to`, [k].
void ReadRow(const PackedMatrix& matrix, int row, float* to);

struct CpuLayer {
  const float* attention_norm = nullptr;  // [hidden]; null: none
  PackedMatrix qkv;                       // queries, keys, values of all heads
  const float* qkv_bias = nullptr;        // [columns of qkv]; null: none
  const float* query_norm = nullptr;      // [head_dim]; null: none, and key_norm is null too
  const float* key_norm = nullptr;
  PackedMatrix attention_out;
  const float* mlp_norm = nullptr;
  PackedMatrix gate_up;  // panels of gate and up alternate
  PackedMatrix mlp_out;
};

struct CpuWeights {
  Buffer memory;                        // holds everything below except the embedding
  Buffer embedding_memory;              // a copy: the mapped files may shrink
  Storage storage = Storage::kFloat32;  // of all matrices that are not in blocks
  bool has_blocks = false;
  // [vocab, hidden], as stored or in blocks. Without outer_norms there is no embedding and no head.
  TensorView embedding;
  PackedMatrix embedding_blocks;
  std::vector<CpuLayer> layers;
  const float* final_norm = nullptr;  // null: none
  PackedMatrix head;
};

// Packs every matrix and copies the embedding; norms become float32. With `keep_blocks`, matrices that are
// stored in blocks stay in blocks. Changing or truncating a file afterwards has no effect. Errors are those
// of the source and of Buffer. `progress` may be null.
absl::StatusOr<CpuWeights> LoadCpuWeights(const TensorSource& source, const DecoderConfig& spec,
                                          Storage storage, bool keep_blocks, ThreadPool& pool,
                                          const std::function<void(double)>& progress);

}  // namespace outrider
