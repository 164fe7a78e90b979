// The plug-in's launches on the host: the kernels' own source where it is a template, and FlashInfer's
// attention by its definition, over the same plan.
#include <algorithm>
#include <cmath>
#include <vector>

#include "common/engine/cuda/attention_kernels.h"
#include "common/engine/cuda/attention_plan.h"
#include "common/engine/cuda/decide_kernels.h"
#include "common/engine/cuda/layer_kernels.h"
#include "common/engine/cuda/layer_rows.h"
#include "tests/unit/host_kernels.h"
#include "work.h"

namespace outrider::cuda {
namespace {

using emulation::Enqueue;

const uint16_t* Bits(const void* values) { return static_cast<const uint16_t*>(values); }

// The only thread of a row.
struct OneThread {
  int rank() const { return 0; }
  int size() const { return 1; }
  float Sum(float value) const { return value; }
  float Max(float value) const { return value; }
};

// A thread of a head. The threads run one after another, in two passes: in the first each adds its value to
// the sum, and in the second each has the sum of all.
class HeadThread {
 public:
  HeadThread(int rank, int size, bool adds, float* sum) : rank_(rank), size_(size), adds_(adds), sum_(sum) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  float Sum(float value) const {
    if (adds_) *sum_ += value;
    return *sum_;
  }

 private:
  const int rank_, size_;
  const bool adds_;
  float* const sum_;
};

// The keys and values of a split and a head, as float32, so that all queries of an item read them.
struct Split {
  int begin;
  std::vector<float> keys;    // [head_dim, positions]
  std::vector<float> values;  // [positions, head_dim]
};

// The keys and values of an item's split, from blocks of `block_size` slots, `block_stride` elements apart.
Split ReadSplit(const AttentionArguments& a, const AttentionItems& items, int item, int block_size,
                int64_t block_stride, int kv_head, int length) {
  const int sequence = items.sequence[item], dim = a.head_dim, begin = items.split[item] * *a.split_size;
  const int positions = std::min(*a.split_size, length - begin);
  const size_t size = static_cast<size_t>(positions) * static_cast<size_t>(dim);
  Split split{.begin = begin, .keys = std::vector<float>(size), .values = std::vector<float>(size)};
  for (int p = 0; p < positions; ++p) {
    const int block = a.blocks[items.block_start[sequence] + (begin + p) / block_size];
    const int64_t at =
        block * block_stride + (int64_t{kv_head} * a.block_size * dim) + (begin + p) % block_size * dim;
    for (int d = 0; d < dim; ++d) {
      split.keys[static_cast<size_t>(d * positions + p)] = FromBFloat16(Bits(a.keys)[at + d]);
      split.values[static_cast<size_t>(p * dim + d)] = FromBFloat16(Bits(a.values)[at + d]);
    }
  }
  return split;
}

// Writes a query's attention over its positions in a split to out [head_dim]. Returns the base-2 logarithm of
// the sum of the weights.
float AttendSplit(const AttentionArguments& a, const Split& split, const uint16_t* query, int position,
                  uint16_t* out) {
  constexpr float kNever = -5e4f;
  const int dim = a.head_dim, positions = static_cast<int>(split.keys.size()) / dim;
  const int seen = std::min(positions, position + 1 - split.begin);
  std::vector<float> scores(static_cast<size_t>(positions)), sums(static_cast<size_t>(dim));
  for (int d = 0; d < dim; ++d) {
    const float q = FromBFloat16(query[d]);
    const float* const keys = &split.keys[static_cast<size_t>(d * positions)];
    for (size_t p = 0; p < scores.size(); ++p) scores[p] += q * keys[p];
  }
  scores.resize(static_cast<size_t>(seen));
  for (int p = 0; p < seen; ++p) {
    float& score = scores[static_cast<size_t>(p)];
    score /= std::sqrt(static_cast<float>(dim));
    if (a.window > 0 && split.begin + p + a.window <= position) score = kNever;
  }
  const float most = *std::max_element(scores.begin(), scores.end());
  float total = 0;
  for (int p = 0; p < seen; ++p) {
    const float weight = std::exp(scores[static_cast<size_t>(p)] - most);
    total += weight;
    const float rounded = FromBFloat16(ToBFloat16(weight));
    const float* const values = &split.values[static_cast<size_t>(p * dim)];
    for (size_t d = 0; d < sums.size(); ++d) sums[d] += rounded * values[d];
  }
  for (size_t d = 0; d < sums.size(); ++d) out[d] = ToBFloat16(sums[d] / total);
  return most * std::log2(std::exp(1.0f)) + std::log2(total);
}

void AttendItem(const AttentionArguments& a, const AttentionItems& items, int item, int block_size,
                int64_t block_stride) {
  const int sequence = items.sequence[item];
  const int blocks = items.block_start[sequence + 1] - items.block_start[sequence];
  const int length = (blocks - 1) * block_size + items.last_length[sequence];
  const int splits = (length + *a.split_size - 1) / *a.split_size;
  const int first_row = items.query_start[sequence], rows = items.query_start[sequence + 1] - first_row;
  const int group = a.query_heads / a.kv_heads;
  for (int kv_head = 0; kv_head < a.kv_heads; ++kv_head) {
    const Split split = ReadSplit(a, items, item, block_size, block_stride, kv_head, length);
    for (int i = 0; i < kQueryTile; ++i) {
      const int query = items.tile[item] * kQueryTile + i, r = query / group;
      const int head = kv_head * group + query % group, position = length - rows + r;
      if (r >= rows || split.begin > position) continue;
      const int64_t at = items.output_start[sequence] + (a.merge ? r * splits + items.split[item] : r);
      const int64_t row = first_row + r;
      const float log_sum = AttendSplit(
          a, split, Bits(a.queries) + row * a.query_stride + int64_t{head} * a.head_dim, position,
          static_cast<uint16_t*>(a.merge ? a.partials : a.out) + (at * a.query_heads + head) * a.head_dim);
      if (a.merge) a.partial_sums[at * a.query_heads + head] = log_sum;
    }
  }
}

void Attend(const AttentionArguments& a) {
  for (int item = 0; item < a.items.count; ++item) {
    if (a.items.valid[item]) AttendItem(a, a.items, item, a.block_size, a.block_stride);
  }
  for (int item = 0; item < a.tail_items.count; ++item) {
    if (a.tail_items.valid[item]) AttendItem(a, a.tail_items, item, /*block_size=*/1, a.head_dim);
  }
  if (!a.merge) return;
  for (int row = 0; row < a.rows; ++row) {
    for (int column = 0; column < a.query_heads * a.head_dim; column += kMergeElements) {
      MergePartials(Bits(a.partials), a.partial_sums, a.row_partial, a.row_splits, a.query_heads, a.head_dim,
                    row, column, static_cast<uint16_t*>(a.out));
    }
  }
}

// AddNorm of `count` rows, in as much shared memory as a thread block has.
void AddNorm(int count, const int32_t* indices, const Product& product, const float* hidden_in,
             float* hidden_out, const float* weight, float epsilon, const OperandRows& out, int columns,
             cudaStream_t stream) {
  if (static_cast<size_t>(columns) * sizeof(float) + kReductionBytes > kSharedBytes)
    return emulation::FailLaunch(cudaErrorInvalidValue);
  Enqueue(stream, [=] {
    std::vector<float> values(static_cast<size_t>(columns));
    for (int r = 0; r < count; ++r) {
      AddNormRow(OneThread(), r, indices, product, hidden_in, hidden_out, weight, epsilon, out, columns,
                 values.data());
    }
  });
}

}  // namespace

void LaunchEmbed(const int32_t* tokens, const __nv_bfloat16* table, float* hidden, int rows, int columns,
                 cudaStream_t stream) {
  Enqueue(stream, [=] {
    for (int r = 0; r < rows; ++r) EmbedRow(OneThread(), r, tokens, Bits(table), hidden, columns);
  });
}

void LaunchAddNorm(const Product& product, float* hidden, const float* weight, float epsilon,
                   const OperandRows& out, int rows, int columns, cudaStream_t stream) {
  AddNorm(rows, nullptr, product, hidden, hidden, weight, epsilon, out, columns, stream);
}

void LaunchAddNormOf(const int32_t* indices, const Product& product, const float* hidden, const float* weight,
                     float epsilon, const OperandRows& out, int rows, int columns, cudaStream_t stream) {
  AddNorm(rows, indices, product, hidden, nullptr, weight, epsilon, out, columns, stream);
}

void LaunchRotateAndStore(const Product& qkv, const HeadFinish& finish, const RowPlace* places,
                          const float* cosines, const float* sines, const HeadShape& shape,
                          __nv_bfloat16* queries, const KvLayerView& kv, int rows, cudaStream_t stream) {
  Enqueue(stream, [=] {
    for (int i = 0; i < rows * (shape.heads + 2 * shape.kv_heads); ++i) {
      const int heads = shape.heads + 2 * shape.kv_heads, threads = shape.head_dim / 2;
      float sum = 0;
      for (const bool adds : {true, false}) {
        for (int rank = 0; rank < threads; ++rank) {
          RotateAndStoreHead(HeadThread(rank, threads, adds, &sum), i / heads, i % heads, qkv, finish, places,
                             cosines, sines, shape, reinterpret_cast<uint16_t*>(queries), kv);
        }
      }
    }
  });
}

void LaunchQuantize(const __nv_bfloat16* x, const OperandRows& out, int rows, int columns,
                    cudaStream_t stream) {
  Enqueue(stream, [=] {
    for (int r = 0; r < rows; ++r) QuantizeRow(OneThread(), r, Bits(x), out, columns);
  });
}

void LaunchSiluMul(const Product& gate_up, const OperandRows& out, int rows, int columns,
                   cudaStream_t stream) {
  Enqueue(stream, [=] {
    for (int r = 0; r < rows; ++r) {
      if (out.row_scales == nullptr) {
        SiluMulBFloat16Row(OneThread(), r, gate_up, out, columns);
      } else {
        SiluMulRow(OneThread(), r, gate_up, out, columns);
      }
    }
  });
}

void LaunchScale(const Product& product, float* y, int rows, int columns, cudaStream_t stream) {
  Enqueue(stream, [=] {
    for (int r = 0; r < rows; ++r) ScaleRow(OneThread(), r, product, y, columns);
  });
}

cudaError_t PrepareAttention(int head_dim) {
  return head_dim == 64 || head_dim == 128 ? cudaSuccess : cudaErrorNotSupported;
}

cudaError_t LaunchAttention(const AttentionArguments& arguments, cudaStream_t stream) {
  Enqueue(stream, [=] { Attend(arguments); });
  return cudaSuccess;
}

cudaError_t LaunchFill(Operand operand, void* to, size_t count, uint64_t seed, cudaStream_t stream) {
  Enqueue(stream, [=] {
    uint64_t bits = seed;
    for (size_t i = 0; i < count; ++i) {
      bits = bits * 6364136223846793005u + 1442695040888963407u;
      // The exponent is that of a number in [1, 2), or up to seven smaller.
      const uint16_t high = static_cast<uint16_t>(bits >> 48);
      if (operand == Operand::kFp8) {
        static_cast<uint8_t*>(to)[i] = (high & 0x7f) == 0x7f ? 0x7e : high & 0xff;
      } else {
        static_cast<uint16_t*>(to)[i] = static_cast<uint16_t>((high & 0x807f) | (120 + high / 128 % 8) << 7);
      }
    }
  });
  return cudaSuccess;
}

cudaError_t LaunchCompare(const float* a, const float* b, size_t count, int* differs, cudaStream_t stream) {
  Enqueue(stream, [=] {
    if (std::memcmp(a, b, count * sizeof(float)) != 0) *differs = 1;
  });
  return cudaSuccess;
}

cudaError_t LaunchShape(float* logits, int vocab, int rows, const ShapeParams* params, ShapedRow* shaped,
                        cudaStream_t stream) {
  Enqueue(stream, [=] { testing::HostShape(/*team=*/1, logits, vocab, rows, params, shaped); });
  return cudaSuccess;
}

cudaError_t LaunchPropose(const float* weights, int vocab, int rows, const ShapedRow* shaped,
                          const ProposeInput* inputs, int step, ProposeOutput* outputs, int32_t* q_ids,
                          float* q_weights, int32_t* next_tokens, const int32_t* head_tokens,
                          cudaStream_t stream) {
  Enqueue(stream, [=] {
    testing::HostPropose(/*team=*/1, weights, vocab, rows, shaped, inputs, step, outputs, q_ids, q_weights,
                         next_tokens, head_tokens);
  });
  return cudaSuccess;
}

cudaError_t LaunchVerify(const float* weights, int vocab, int sequences, int /*max_drafted*/,
                         const ShapedRow* shaped, const VerifyInput* inputs, const DraftedToken* drafted,
                         const int32_t* q_ids, const float* q_weights, int32_t* races, VerifyOutput* outputs,
                         cudaStream_t stream) {
  Enqueue(stream, [=] {
    testing::HostVerify(/*team=*/1, weights, vocab, sequences, shaped, inputs, drafted, q_ids, q_weights,
                        races, outputs);
  });
  return cudaSuccess;
}

}  // namespace outrider::cuda
