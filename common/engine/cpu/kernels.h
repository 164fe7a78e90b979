// The CPU kernels: one table of function pointers per instruction set, selected at run time.
//
// All kernels are batch-invariant: the result for a row (of a matrix product) or a query (of attention) comes
// from one fixed sequence of operations that depends only on that row's own data and position. Every output
// element is one chain of multiply-adds over k (with AMX, of sums of 32), or over positions, in ascending
// order; tiles only decide which chains run side by side. A row's bits therefore do not depend on the batch,
// the chunking, the partition over threads or the block size.
//
// Weights in blocks use one chain per block. The sums of the blocks are scaled and added in ascending order.
// With `rounds_blocks` these chains are of integers: operands are rounded to levels of 16 bits, whose scale
// is a power of two for each block. An instruction multiplies twice as many of them as of float32.
//
// "Operands" below are the inputs of matrix products: float32, or bfloat16 if the weights are not float32 and
// the instruction set multiplies bfloat16 by bfloat16 (`rounds_operands`). The producer of an
// operand rounds it, which halves the traffic between cores.
//
// Translation units for different instruction sets include this header, so it contains plain data only: an
// inline function could be emitted with instructions that the machine lacks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider {

// How weights are stored in memory. Blocks (decoder/blocks.h) have levels of 4 or 8 bits; wide blocks have
// float32 scales and minimums, the others float16. With kInt8 weights, keys and values are bfloat16.
enum class Storage : uint8_t { kFloat32, kBFloat16, kInt8, kBlocks4, kBlocks8, kWideBlocks4, kWideBlocks8 };

// Columns per panel of packed weights.
inline constexpr int kPanel = 32;
// Bytes at the head of a panel of int8 weights: a float32 scale for each column.
inline constexpr int kScaleBytes = kPanel * 4;
// The number of adjacent k of a column that form a block.
inline constexpr int kBlockColumns = 32;
// The maximum number of queries (rows x heads of one KV head) in one attention call.
inline constexpr int kMaxQueries = 16;
// In a block, the positions of keys and the head dimensions of values are padded to a multiple of this.
inline constexpr int kKvPad = 16;

enum class Epilogue : uint8_t {
  kStore,    // y = xW
  kAdd,      // y += xW
  kSiluMul,  // panels alternate gate, up: y = silu(x gate) * (x up), and y has n / 2 columns
};

// y[r, n] = sum over k of x[r, k] W[n, k].
//
// Weights are packed as [n / 32][k][32] for float32 and as [n / 32][k / 2][32][2] for bfloat16: a 32-bit word
// holds two adjacent k of one column, which a shift and a mask widen. The last panel is padded with zeros.
// int8 is packed like bfloat16, one byte per weight, after the panel's scales: W = scale * byte. The bytes
// are integers that bfloat16 represents exactly, so the kernel multiplies them directly and scales the sum
// once.
//
// Blocks are packed as [n / 32][k / 32], each with the scales of 32 columns, their minimums and their levels.
// Levels of 8 bits are packed like int8. Levels of 4 bits are packed as [4][32][2] words of 16 bits; the k of
// a word are two apart, with the first k in the lowest bits.
struct LinearArgs {
  const void* weights;  // 64-byte aligned
  Storage storage;
  Epilogue epilogue;
  int k;  // even
  int n;  // columns of W; for kSiluMul a multiple of 64, padding included
  int rows;
  const void* x;  // operands, [rows, k]; for weights in blocks with `rounds_blocks`, their levels
  // By prepare_blocks, only for weights in blocks, [rows, k / 32]: the sums of the blocks of x, and the
  // scales of their levels.
  const float* sums;
  const float* scales;
  void* y;            // [rows, y_columns], float32; operands for kSiluMul
  int64_t y_columns;  // without padding
  // This call computes the columns of panels [first_panel, last_panel) for all rows. For kSiluMul both are
  // even.
  int first_panel;
  int last_panel;
  const void* next;  // the weights that this thread will probably read next, to be prefetched meanwhile
};

// One layer's part of the KV pool. A block's keys are [kv_head][head_dim][slot_stride] for float32 and
// [kv_head][head_dim / 2][slot_stride][2] for bfloat16, so that scores of adjacent positions are computed
// side by side. Its values are [kv_head][block_size][value_stride]. For bfloat16 values, each kernel set has
// its own order of the dimensions.
struct KvLayer {
  char* base;  // block 0
  int64_t block_bytes;
  int64_t value_offset;  // of the values within a block's part
  Storage storage;
  int block_size;
  int slot_stride;   // block_size padded to kKvPad
  int head_dim;      // even
  int value_stride;  // head_dim padded to kKvPad
};

// The path to a tree node: its ancestors in order of depth, then the node itself. Their slots are the
// `length` entries of AttentionArgs::path_slots from `first` on.
struct NodePath {
  int first;
  int length;
};

// Attention of consecutive rows of one sequence, for `heads` query heads that share one KV head. Row r of a
// chain is at position first_position + r and attends to positions [0, first_position + r], each in the slot
// of the same number. A node of a tree attends to positions [0, first_position), then to its path, which has
// one position per level. The order of operations is the same as for a chain with these positions.
struct AttentionArgs {
  KvLayer kv;
  const int32_t* blocks;
  int kv_head;
  int heads;  // rows * heads <= kMaxQueries
  int rows;
  int first_position;         // of row 0; for a tree, of its first level
  const NodePath* paths;      // [rows]; null: the rows are a chain
  const int32_t* path_slots;  // slots of the sequence
  int window;                 // how many positions a row attends to, its own included; 0: all
  int first_attended;         // positions before this one are not attended to
  const float* q;             // row 0, first head; rotated and scaled
  int64_t q_stride;
  void* out;  // operands; row 0, first head
  int64_t out_stride;
  float* scratch;  // [rows * heads][scratch_stride]
  // At least length + 2 * kKvPad + value_stride + head_dim, if the positions of all rows are below `length`.
  int64_t scratch_stride;
};

// Rotates one row's queries and keys, scales the queries, and stores the key and value in the cache.
struct RotateArgs {
  KvLayer kv;
  int32_t block;
  int slot;
  int heads;
  int kv_heads;
  float* q;  // [heads][head_dim], in place; the keys and values follow: [kv_heads][head_dim] each
  float q_scale;
  const float* cosines;  // [head_dim / 2], of the row's position
  const float* sines;
};

// Reads the key and value of one slot, of all KV heads, as RotateArgs stored them.
struct ReadSlotArgs {
  KvLayer kv;
  int32_t block;
  int slot;
  int kv_heads;
  float* out;  // keys, then values: [kv_heads][head_dim] each
};

// Blocks of operands, for products with weights in blocks. Levels are rounded operands, in units of the
// block's scale.
struct OperandBlocks {
  int16_t* levels;  // [blocks, 32]
  float* scales;    // [blocks]
  float* sums;      // [blocks], of the operands as they are multiplied
};

struct Kernels {
  const char* name;
  void (*linear)(const LinearArgs& args);
  void (*attention)(const AttentionArgs& args);
  void (*rotate_and_store)(const RotateArgs& args);
  void (*read_slot)(const ReadSlotArgs& args);
  // y = x / sqrt(mean(x^2) + epsilon) * weight. y holds operands for weights of this storage, and may be x if
  // these operands are float32.
  void (*rms_norm)(const float* x, const float* weight, float epsilon, int n, Storage storage, void* y);
  // Writes the sums of blocks of operands and, with `rounds_blocks`, their levels and scales.
  void (*prepare_blocks)(const void* x, int64_t blocks, const OperandBlocks& to);
  // Whether operands are bfloat16 if the weights are not float32.
  bool rounds_operands;
  // Whether weights in blocks are multiplied by levels. The operands are float32 then.
  bool rounds_blocks;
};

// The fastest kernels that this CPU can run.
const Kernels& BestKernels();
// The kernels of this name ("avx512amx", "avx512bf16", "avx512", "avx2", "neonbf16", "neon", "portable");
// null if this CPU cannot run them.
const Kernels* FindKernels(const char* name);

namespace kernels_internal {
extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx512Amx;
extern const Kernels kAvx512BFloat16;
extern const Kernels kAvx512;
extern const Kernels kAvx2;
#elif defined(__aarch64__)
extern const Kernels kNeonBFloat16;
extern const Kernels kNeon;
#endif
}  // namespace kernels_internal

}  // namespace outrider
