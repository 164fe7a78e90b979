// How attention over a batch is cut into pieces that thread blocks compute, decided on the host.
//
// A piece is a tile of queries by a split of the positions. Tiles are kQueryTile (row, query head) pairs of
// one sequence that share a KV head; splits are [0, kSplit), [kSplit, 2 kSplit), ... of a sequence's
// positions. A row whose position is p attends to splits 0 to p / kSplit, and to nothing of later ones, so
// that which partial results it is merged of, and in which order, follows from p: not from the batch, nor
// from how many rows of its sequence come along. That is what makes attention batch-invariant
// (docs/exactness.md). FlashInfer's own PrefillPlan chooses both tile and split by the batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/kv/block_id.h"

namespace outrider::cuda {

// The smallest tile that FlashInfer has: verifying K = 4 drafted tokens with 3 query heads for each KV head
// is 15 queries. Tiles of 64 would read the keys of a long prompt a fourth as often, but a decoding step,
// which is most of the work, would compute 64 queries where it has 3, with one warp in place of four over the
// positions.
inline constexpr int kQueryTile = 16;
// Positions. Short, so that one sequence occupies more than a thread block for each KV head; two tiles of
// keys.
inline constexpr int kSplit = 256;

struct AttentionShape {
  int query_heads = 0;  // a multiple of kv_heads
  int kv_heads = 0;
  int head_dim = 0;    // 64 or 128
  int block_size = 0;  // positions in a block of the cache
};

// A sequence's part in a batch: queries of its last `rows` positions.
struct AttentionSequence {
  int rows = 0;                      // at least one
  int length = 0;                    // of its positions, those of the rows included
  absl::Span<const BlockId> blocks;  // position p is in blocks[p / block_size]
};

// How much a batch needs, or the shape of a launch, which a captured graph fixes: it serves every batch that
// needs no more of anything.
struct AttentionSize {
  int sequences = 0;
  int rows = 0;
  int items = 0;     // pieces: thread blocks for each KV head
  int blocks = 0;    // of all sequences, a shared one as often as it is used
  int partials = 0;  // partial results, for each query head; 0 where no sequence is longer than a split

  bool Holds(const AttentionSize& other) const;
};

// What this batch needs. The batch must be well formed.
AttentionSize SizeOf(const AttentionShape& shape, absl::Span<const AttentionSequence> batch);

// What any batch of so many sequences and rows needs at most, none of it longer than `length`.
AttentionSize LargestSize(const AttentionShape& shape, int sequences, int rows, int length);

// Rows [first_row, ...) of a batch, in their order.
struct AttentionPass {
  int first_row = 0;
  std::vector<AttentionSequence> sequences;
};

// Cuts a batch into passes that `capacity` holds, between sequences and between rows of a sequence, where a
// prompt needs more partial results than there is room for. RESOURCE_EXHAUSTED if it cannot hold a single
// row.
absl::StatusOr<std::vector<AttentionPass>> CutIntoPasses(const AttentionShape& shape,
                                                         absl::Span<const AttentionSequence> batch,
                                                         const AttentionSize& capacity);

// Where the arrays of a plan are, in bytes from its beginning. All but `valid` are int32. The blocks come
// last, so that a copy to the device can end with those in use.
struct PlanLayout {
  explicit PlanLayout(const AttentionSize& size);

  size_t split;          // [1], kSplit
  size_t query_start;    // [sequences + 1], in rows
  size_t output_start;   // [sequences + 1], in partial results; in rows where size.partials is 0
  size_t block_start;    // [sequences + 1], in `blocks`
  size_t last_length;    // [sequences], positions in the last block
  size_t item_sequence;  // [items]
  size_t item_tile;      // [items], of its sequence
  size_t item_split;     // [items]
  size_t row_partial;    // [rows], the first of a row's partial results, which follow each other
  size_t row_splits;     // [rows], how many; 0 for a row that this batch does not have
  size_t valid;          // [items], bool
  size_t blocks;         // [blocks]
  size_t bytes;
};

// Writes the plan of a batch for launches of a size, and returns how many bytes of it to copy. `plan` is
// aligned to 16 bytes and has PlanLayout(size).bytes. INVALID_ARGUMENT, naming what is wrong, where a
// sequence is not well formed or the size does not hold the batch.
absl::StatusOr<size_t> WritePlan(const AttentionShape& shape, const AttentionSize& size,
                                 absl::Span<const AttentionSequence> batch, char* plan);

}  // namespace outrider::cuda
