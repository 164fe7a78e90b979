// The rows of a step on the device: their places in the cache, their types as operands of products, and what
// kernels do to one row. These functions are templates over a team of threads: a thread block on the device,
// threads of the host in the tests.
//
// A team consists of whole warps of 32 threads and has
//   rank(), size()   this thread's number and how many there are
//   Sum(float)       collective: the sum of all threads' values, to every thread
//   Max(float)       collective: the largest of them
// The order of a sum is fixed: pairwise within a warp (distance 16, 8, 4, 2, 1), then the warps in order. So
// a result depends on the size of the team, which the kernels fix. All threads of a team call a function with
// the same arguments. bfloat16 values are stored as their bits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/engine/decoder/narrow_floats.h"
#include "common/spec/team/team.h"
#include "common/spec/types.h"

namespace outrider::cuda {

// The position of a row in its sequence, and its place in the KV cache.
struct RowPlace {
  int32_t position;
  int32_t block;
  int32_t slot;
};

// The type of a product's operands: bfloat16, or fp8 (e4m3) with a scale for each row of either operand.
enum class Operand : uint8_t { kBFloat16, kFp8 };

inline constexpr size_t OperandBytes(Operand operand) { return operand == Operand::kFp8 ? 1 : 2; }

// The rows of a product are padded to a multiple of this.
inline constexpr int kRowTile = 16;
inline constexpr int PaddedRows(int rows) { return (rows + kRowTile - 1) / kRowTile * kRowTile; }

// The result of a product of matmul.h: the value at row r, column c is y[r, c] * row_scales[r] *
// column_scales[c]; for bfloat16 there are no scales (null).
struct Product {
  const float* y = nullptr;  // [rows, columns]
  const float* row_scales = nullptr;
  const float* column_scales = nullptr;
};

// Where to write an operand of the next product: [rows, columns] of its type and, for fp8, the scale of each
// row.
struct OperandRows {
  void* data = nullptr;
  float* row_scales = nullptr;  // null: bfloat16
};

// The keys and values of one layer, bfloat16. A block's keys are [kv_heads, block_size, head_dim]; its values
// follow, likewise.
struct KvLayerView {
  void* base;            // block 0
  int64_t block_stride;  // elements
  int block_size;
};

struct HeadShape {
  int heads;
  int kv_heads;
  int head_dim;
};

// The bias and norms that a model applies to queries, keys and values before rotation. Null: none.
struct HeadFinish {
  const float* bias = nullptr;        // [(heads + 2 kv_heads) * head_dim], added
  const float* query_norm = nullptr;  // [head_dim], an RMS norm of each head; set together with key_norm
  const float* key_norm = nullptr;
  float epsilon = 0;
};

OUTRIDER_HD inline float At(const Product& product, int64_t row, int column, int columns) {
  const float y = product.y[row * columns + column];
  return product.row_scales == nullptr ? y : y * product.row_scales[row] * product.column_scales[column];
}

// e^x. On the device, an approximation that is off by at most 2 + |1.2 x| units in the last place.
OUTRIDER_HD inline float FastExp(float x) {
#ifdef __CUDA_ARCH__
  return __expf(x);
#else
  return std::exp(x);
#endif
}

// Writes the columns [0, columns) of a row of a bfloat16 operand. A thread calls value(c, load(c)) for its
// own columns only. The team may be several thread blocks.
template <class Team, class Load, class Value>
OUTRIDER_HD void WriteBFloat16(const Team& team, const OperandRows& out, int64_t row, int columns,
                               const Load& load, const Value& value) {
  uint16_t* const to = static_cast<uint16_t*>(out.data) + row * columns;
  team::ForEach(team, columns, load,
                [&](int c, const auto& loaded) { to[c] = ToBFloat16(value(c, loaded)); });
}

// The same for an operand of either type, by a team that has Max. For fp8, calls load and value twice.
template <class Team, class Load, class Value>
OUTRIDER_HD void WriteOperand(const Team& team, const OperandRows& out, int64_t row, int columns,
                              const Load& load, const Value& value) {
  if (out.row_scales == nullptr) return WriteBFloat16(team, out, row, columns, load, value);
  float largest = 0;
  team::ForEach(team, columns, load,
                [&](int c, const auto& loaded) { largest = fmaxf(largest, fabsf(value(c, loaded))); });
  largest = team.Max(largest);
  const float scale = largest > 0 ? largest / kLargestFloat8 : 1;
  const float inverse = 1 / scale;
  uint8_t* const to = static_cast<uint8_t*>(out.data) + row * columns;
  team::ForEach(team, columns, load,
                [&](int c, const auto& loaded) { to[c] = ToFloat8(value(c, loaded) * inverse); });
  if (team.rank() == 0) out.row_scales[row] = scale;
}

template <class Team>
OUTRIDER_HD void EmbedRow(const Team& team, int64_t row, const int32_t* tokens, const uint16_t* table,
                          float* hidden, int columns) {
  const uint16_t* const from = table + int64_t{tokens[row]} * columns;
  const auto load = [&](int c) { return from[c]; };
  team::ForEach(team, columns, load,
                [&](int c, uint16_t bits) { hidden[row * columns + c] = FromBFloat16(bits); });
}

// `values` [columns] is scratch memory of the team. `hidden_out` may be `hidden_in` or null.
template <class Team>
OUTRIDER_HD void AddNormRow(const Team& team, int64_t row, const int32_t* indices, const Product& product,
                            const float* hidden_in, float* hidden_out, const float* weight, float epsilon,
                            const OperandRows& out, int columns, float* values) {
  const int64_t from = indices == nullptr ? row : indices[row];
  float squares = 0;
  const auto load_sum = [&](int c) {
    const float value = hidden_in[from * columns + c];
    return product.y == nullptr ? value : value + At(product, from, c, columns);
  };
  team::ForEach(team, columns, load_sum, [&](int c, float value) {
    if (hidden_out != nullptr) hidden_out[row * columns + c] = value;
    values[c] = value;
    squares += value * value;
  });
  const float factor = 1 / sqrtf(team.Sum(squares) / static_cast<float>(columns) + epsilon);
  WriteOperand(
      team, out, row, columns, [&](int c) { return weight[c]; },
      [&](int c, float scale) { return values[c] * factor * scale; });
}

// There is a team of head_dim / 2 threads for each row and head; a thread has one pair of the head's
// dimensions. Heads are numbered in the order queries, keys, values.
template <class Team>
OUTRIDER_HD void RotateAndStoreHead(const Team& team, int64_t row, int head, const Product& qkv,
                                    const HeadFinish& finish, const RowPlace* places, const float* cosines,
                                    const float* sines, const HeadShape& shape, uint16_t* queries,
                                    const KvLayerView& kv) {
  const int dim = shape.head_dim;
  const int half = dim / 2;
  const int columns = (shape.heads + 2 * shape.kv_heads) * dim;
  const RowPlace place = places[row];
  const int kv_head = (head - shape.heads) % shape.kv_heads;
  const bool is_value = head >= shape.heads + shape.kv_heads;
  uint16_t* to;
  if (head < shape.heads) {
    to = queries + (row * shape.heads + head) * dim;
  } else {
    const int64_t part = int64_t{shape.kv_heads} * kv.block_size * dim;
    to = static_cast<uint16_t*>(kv.base) + place.block * kv.block_stride + (is_value ? part : 0) +
         (int64_t{kv_head} * kv.block_size + place.slot) * dim;
  }
  const int i = team.rank();
  float low = At(qkv, row, head * dim + i, columns);
  float high = At(qkv, row, head * dim + half + i, columns);
  if (finish.bias != nullptr) {
    low += finish.bias[head * dim + i];
    high += finish.bias[head * dim + half + i];
  }
  if (finish.query_norm != nullptr && !is_value) {
    const float* const norm = head < shape.heads ? finish.query_norm : finish.key_norm;
    const float squares = team.Sum(low * low + high * high);
    const float scale = 1 / sqrtf(squares / static_cast<float>(dim) + finish.epsilon);
    low = low * scale * norm[i];
    high = high * scale * norm[half + i];
  }
  const float cosine = is_value ? 1 : cosines[int64_t{place.position} * half + i];
  const float sine = is_value ? 0 : sines[int64_t{place.position} * half + i];
  to[i] = ToBFloat16(low * cosine - high * sine);
  to[half + i] = ToBFloat16(high * cosine + low * sine);
}

template <class Team>
OUTRIDER_HD void QuantizeRow(const Team& team, int64_t row, const uint16_t* x, const OperandRows& out,
                             int columns) {
  WriteOperand(
      team, out, row, columns, [&](int c) { return x[row * columns + c]; },
      [](int /*c*/, uint16_t bits) { return FromBFloat16(bits); });
}

// A row of silu(gate) * up, as `load` and `value` of WriteOperand.
struct SiluMulColumns {
  struct Loaded {
    float gate, up;
  };

  OUTRIDER_HD Loaded operator()(int c) const {
    return {At(gate_up, row, c, 2 * columns), At(gate_up, row, columns + c, 2 * columns)};
  }
  OUTRIDER_HD float operator()(int /*c*/, const Loaded& loaded) const {
    return loaded.gate / (1 + FastExp(-loaded.gate)) * loaded.up;
  }

  const Product& gate_up;
  int64_t row;
  int columns;
};

template <class Team>
OUTRIDER_HD void SiluMulRow(const Team& team, int64_t row, const Product& gate_up, const OperandRows& out,
                            int columns) {
  const SiluMulColumns silu_mul{gate_up, row, columns};
  WriteOperand(team, out, row, columns, silu_mul, silu_mul);
}

// The same in bfloat16. The team may be several thread blocks.
template <class Team>
OUTRIDER_HD void SiluMulBFloat16Row(const Team& team, int64_t row, const Product& gate_up,
                                    const OperandRows& out, int columns) {
  const SiluMulColumns silu_mul{gate_up, row, columns};
  WriteBFloat16(team, out, row, columns, silu_mul, silu_mul);
}

// The team may be several thread blocks.
template <class Team>
OUTRIDER_HD void ScaleRow(const Team& team, int64_t row, const Product& product, float* y, int columns) {
  const auto load = [&](int c) { return At(product, row, c, columns); };
  team::ForEach(team, columns, load, [&](int c, float value) { y[row * columns + c] = value; });
}

// Attention is merged from partial results. A thread merges this many elements of a head, which it reads as
// one word of 16 bytes. The elements are the bits of bfloat16 values.
inline constexpr int kMergeElements = 8;
struct alignas(16) MergedElements {
  uint16_t bits[kMergeElements];
};

// out = sum_i 2^(s_i - m) o_i / sum_i 2^(s_i - m) over a row's partial results in order of position, with m =
// max s_i, for the kMergeElements columns from `column` on. `partials` is [*, heads * head_dim], `sums` has
// their s [*, heads], `out` is [rows, heads * head_dim]. Writes nothing for a row without partial results. A
// single partial result is copied bit for bit, so it equals what a launch without merging writes.
OUTRIDER_HD inline void MergePartials(const uint16_t* partials, const float* sums, const int32_t* row_partial,
                                      const int32_t* row_splits, int heads, int head_dim, int64_t row,
                                      int column, uint16_t* out) {
  const int splits = row_splits[row];
  if (splits == 0) return;
  const int64_t width = int64_t{heads} * head_dim;
  const int64_t first = row_partial[row];
  sums += first * heads + column / head_dim;
  partials += first * width + column;

  float most = sums[0];
  for (int i = 1; i < splits; ++i) most = fmaxf(most, sums[int64_t{i} * heads]);
  float total = 0, merged[kMergeElements] = {};
  for (int i = 0; i < splits; ++i) {
    const float weight = exp2f(sums[int64_t{i} * heads] - most);
    total += weight;
    const MergedElements partial = *reinterpret_cast<const MergedElements*>(partials + i * width);
    for (int e = 0; e < kMergeElements; ++e) {
      merged[e] = fmaf(weight, FromBFloat16(partial.bits[e]), merged[e]);
    }
  }
  MergedElements result;
  for (int e = 0; e < kMergeElements; ++e) result.bits[e] = ToBFloat16(merged[e] / total);
  *reinterpret_cast<MergedElements*>(out + row * width + column) = result;
}

}  // namespace outrider::cuda
