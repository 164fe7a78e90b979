// Plans how attention over a batch is divided into items, one thread block per item and KV head. Runs on the
// host.
//
// An item is a tile of queries times a split of the positions. A tile is kQueryTile pairs (row, query head)
// of one sequence that share a KV head. The splits are [0, kSplit), [kSplit, 2 kSplit), ... of a sequence's
// positions. A row at position p attends to splits 0 to p / kSplit and to nothing in later ones. Its position
// alone therefore determines which partial results it is merged from, and in which order: neither the batch
// nor the number of rows of its sequence matters. That makes attention batch-invariant (docs/exactness.md).
// FlashInfer's own PrefillPlan chooses tile and split by the batch.
//
// A tree node is merged from the same splits, with keys and values in the same order, as the last token of
// its path would be if the path were a chain. All nodes share the whole splits before the tree. In these
// splits, the nodes are rows of one sequence, the trunk. The remaining positions of a node are its tail: a
// sequence of one row whose keys are gathered slot by slot, first those before the tree, then its path in
// order of depth. FlashInfer takes the tail as pages of one position. All pages of a launch have the same
// size, so the tails have a launch of their own, which is made only if there are trees.
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
  int block_size = 0;  // slots in a block of the cache
  // Elements from one block to the next, a multiple of head_dim, below 2^32. A slot of a tail is named by the
  // number of key or value heads before it, which fits in an int.
  int64_t block_stride = 0;
  // Whether a layer has a sliding window. The window requires that the rows of a sequence have consecutive
  // positions, so each node of a tree then has a trunk of its own.
  bool slides = false;
};

// One sequence of a batch, with queries in its last `rows` slots.
struct AttentionSequence {
  int rows = 0;                      // at least one
  int length = 0;                    // number of slots, those of the rows included
  absl::Span<const BlockId> blocks;  // slot s is in blocks[s / block_size]
  // See SequenceRows if the rows are nodes of a tree. Otherwise `parents` is empty, and a slot is a position.
  int tree_begin = 0;
  absl::Span<const int> parents = {};
};

// The number of nodes on the path to a node, itself included; so 1 for a root.
int PathLength(absl::Span<const int> parents, int node);

// The size that a batch needs, or the size of a launch, which a captured graph fixes. A launch serves every
// batch that needs no more of anything.
struct AttentionSize {
  int sequences = 0;
  int rows = 0;
  int items = 0;       // thread blocks per KV head
  int tail_items = 0;  // the same for the launch of the tails; 0 if there are no trees
  int blocks = 0;      // blocks of all sequences (a shared block counts once per use) plus slots of the tails
  int partials = 0;    // partial results per query head; 0 if no sequence is longer than a split

  bool Holds(const AttentionSize& other) const;
  friend auto operator<=>(const AttentionSize&, const AttentionSize&) = default;
};

// The size that this batch needs. The batch must be well-formed.
AttentionSize SizeOf(const AttentionShape& shape, absl::Span<const AttentionSequence> batch);

// An upper bound for every batch without trees that has `sequences` sequences and `rows` rows, if no sequence
// is longer than `length`.
AttentionSize LargestSize(const AttentionShape& shape, int sequences, int rows, int length);

// An upper bound on the `tail_items` and `blocks` that the tails of `rows` tree nodes need, if no path is
// longer than `depth`.
AttentionSize LargestTails(const AttentionShape& shape, int rows, int depth);

// An upper bound on the `blocks` of every batch whose other sizes are at most those of `size`. With this
// bound, batches that differ only in their number of blocks can share a launch.
int LargestBlocks(const AttentionShape& shape, const AttentionSize& size);

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
//
// With tail_items, each row has a tail, which has no items if the row is not a node. Arrays by sequence
// continue with the tails, from index `tails` on. Arrays by item continue with the items of the tails.
struct PlanLayout {
  explicit PlanLayout(const AttentionSize& size);

  int tails;             // sequences + 1
  size_t split_size;     // [1], kSplit
  size_t query_start;    // [sequences + 1], in rows
  size_t output_start;   // [sequences + 1], in partial results; in rows where size.partials is 0
  size_t block_start;    // [sequences + 1], in `blocks`
  size_t last_length;    // [sequences + 1], slots in the last block
  size_t item_sequence;  // [items]
  size_t item_tile;      // [items], within its sequence
  size_t item_split;     // [items], within its sequence
  size_t row_partial;    // [rows], the first of a row's partial results, which are consecutive
  size_t row_splits;     // [rows], how many partial results; 0 for a row that this batch does not have
  size_t valid;          // [items], bool
  size_t blocks;         // [blocks], blocks of the sequences, then slots of the tails
  size_t bytes;
};

// Writes the plan of a batch for launches of `size` and returns how many bytes of it to copy. `plan` is
// aligned to 16 bytes and has PlanLayout(size).bytes. INVALID_ARGUMENT, naming the problem, if a sequence is
// not well-formed or `size` does not hold the batch.
absl::StatusOr<size_t> WritePlan(const AttentionShape& shape, const AttentionSize& size,
                                 absl::Span<const AttentionSequence> batch, char* plan);

}  // namespace outrider::cuda
