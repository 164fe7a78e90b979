// Plans how attention over a batch is divided into items, one thread block per item and KV head. Runs on the
// host.
//
// An item is a tile of queries times a split of the positions. A tile is kQueryTile pairs (row, query head)
// of one sequence that share a KV head. The splits are [0, kSplit), [kSplit, 2 kSplit), ... of a sequence's
// positions. A row at position p attends to splits 0 to p / kSplit and to nothing in later ones. Its position
// alone therefore determines which partial results it is merged from, and in which order: neither the batch
// nor the number of rows of its sequence matters. That makes attention batch-invariant (docs/exactness.md).
// FlashInfer's own PrefillPlan chooses tile and split by the batch.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/kv/block_id.h"

namespace outrider::cuda {

// FlashInfer's smallest tile: verifying K = 4 drafted tokens with 3 query heads per KV head is 15 queries.
// Tiles of 64 would read the keys of a long prompt a quarter as often. But a decoding step, which is most of
// the work, would compute 64 queries where it has 3, with one warp instead of four over the positions.
inline constexpr int kQueryTile = 16;
// Positions per split: two tiles of keys. Small, so that one sequence occupies several thread blocks per KV
// head.
inline constexpr int kSplit = 256;

struct AttentionShape {
  int query_heads = 0;  // a multiple of kv_heads
  int kv_heads = 0;
  int head_dim = 0;    // 64 or 128
  int block_size = 0;  // positions in a block of the cache
};

// One sequence of a batch, with queries at its last `rows` positions.
struct AttentionSequence {
  int rows = 0;                      // at least one
  int length = 0;                    // number of positions, those of the rows included
  absl::Span<const BlockId> blocks;  // position p is in blocks[p / block_size]
};

// What a batch needs, or the size of a launch, which a captured graph fixes. A launch serves every batch that
// needs no more of anything.
struct AttentionSize {
  int sequences = 0;
  int rows = 0;
  int items = 0;     // thread blocks per KV head
  int blocks = 0;    // of all sequences; a shared block counts once per use
  int partials = 0;  // partial results per query head; 0 if no sequence is longer than a split

  bool Holds(const AttentionSize& other) const;
  friend auto operator<=>(const AttentionSize&, const AttentionSize&) = default;
};

// What this batch needs. The batch must be well-formed.
AttentionSize SizeOf(const AttentionShape& shape, absl::Span<const AttentionSequence> batch);

// An upper bound for every batch of that many sequences and rows in which no sequence is longer than
// `length`.
AttentionSize LargestSize(const AttentionShape& shape, int sequences, int rows, int length);

// Consecutive rows of a batch, from first_row on.
struct AttentionPass {
  int first_row = 0;
  std::vector<AttentionSequence> sequences;
};

// Cuts a batch into passes that `capacity` holds, between sequences and, if a prompt needs more partial
// results than there is memory for, between rows of a sequence. RESOURCE_EXHAUSTED if the capacity cannot
// hold a single row.
absl::StatusOr<std::vector<AttentionPass>> CutIntoPasses(const AttentionShape& shape,
                                                         absl::Span<const AttentionSequence> batch,
                                                         const AttentionSize& capacity);

// The byte offsets of a plan's arrays. All but `valid` are int32. The blocks come last, so that a copy to the
// device can stop after the ones in use.
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
  size_t row_partial;    // [rows], the first of a row's partial results, which are consecutive
  size_t row_splits;     // [rows], how many; 0 for a row that this batch does not have
  size_t valid;          // [items], bool
  size_t blocks;         // [blocks]
  size_t bytes;
};

// Writes the plan of a batch for launches of `size` and returns how many bytes of it to copy. `plan` is
// aligned to 16 bytes and has PlanLayout(size).bytes. INVALID_ARGUMENT, naming the problem, if a sequence is
// not well-formed or `size` does not hold the batch.
absl::StatusOr<size_t> WritePlan(const AttentionShape& shape, const AttentionSize& size,
                                 absl::Span<const AttentionSequence> batch, char* plan);

}  // namespace outrider::cuda
