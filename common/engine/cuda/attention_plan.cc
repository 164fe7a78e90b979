#include "common/engine/cuda/attention_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/spec/status.h"

namespace outrider::cuda {
namespace {

int CeilDivide(int a, int b) { return (a + b - 1) / b; }
int Group(const AttentionShape& shape) { return shape.query_heads / shape.kv_heads; }
int Tiles(const AttentionShape& shape, int rows) { return CeilDivide(rows * Group(shape), kQueryTile); }
int Splits(int length) { return CeilDivide(length, kSplit); }
int Blocks(const AttentionShape& shape, int length) { return CeilDivide(length, shape.block_size); }

bool IsTree(const AttentionSequence& sequence) { return !sequence.parents.empty(); }
// The number of splits in a tree's trunk.
int TrunkSplits(const AttentionSequence& tree) { return tree.tree_begin / kSplit; }

// The position of row `row` of a sequence.
int PositionOf(const AttentionSequence& sequence, int row) {
  const int slot = sequence.length - sequence.rows + row;
  if (!IsTree(sequence)) return slot;
  return sequence.tree_begin + PathLength(sequence.parents, slot - sequence.tree_begin) - 1;
}

// The number of positions in a node's tail.
int TailLength(const AttentionSequence& tree, int row) {
  return PositionOf(tree, row) + 1 - TrunkSplits(tree) * kSplit;
}

// The length that the kernel is told. A trunk's length puts all rows behind the splits of the trunk, and
// makes room for the partial results of each row's tail. A trunk of one row ends at the position of that row.
int LaunchedLength(const AttentionSequence& sequence) {
  if (!IsTree(sequence)) return sequence.length;
  int length = TrunkSplits(sequence) * kSplit + sequence.rows;
  for (int r = 0; r < sequence.rows; ++r) length = std::max(length, PositionOf(sequence, r) + 1);
  return length;
}

// The number of splits that a tile attends to, which is that of its last row.
int SplitsOfTile(const AttentionShape& shape, const AttentionSequence& sequence, int tile) {
  if (IsTree(sequence)) return TrunkSplits(sequence);
  const int last_row = std::min(sequence.rows, CeilDivide((tile + 1) * kQueryTile, Group(shape))) - 1;
  return Splits(sequence.length - sequence.rows + last_row + 1);
}

absl::Status Check(const AttentionShape& shape, absl::Span<const AttentionSequence> batch) {
  for (const auto& [rows, length, blocks, tree_begin, parents] : batch) {
    if (rows < 1 || length < rows) return Invalid("attention: ", rows, " rows of a sequence of ", length);
    if (blocks.size() < static_cast<size_t>(Blocks(shape, length))) {
      return Invalid("attention: ", blocks.size(), " blocks of ", shape.block_size, " for a sequence of ",
                     length);
    }
    const int nodes = static_cast<int>(parents.size());
    if (nodes > 0 && (rows > nodes || tree_begin < 0 || tree_begin + nodes != length)) {
      return Invalid("attention: ", rows, " rows of a tree of ", nodes, " nodes from slot ", tree_begin,
                     " to ", length);
    }
    for (int node = 0; node < nodes; ++node) {
      const int parent = parents[static_cast<size_t>(node)];
      if (parent < -1 || parent >= node) {
        return Invalid("attention: node ", node, " follows node ", parent);
      }
    }
  }
  return absl::OkStatus();
}

// `rows` rows of a sequence from row `first` on. They need no slots beyond their own.
AttentionSequence SliceRows(const AttentionSequence& sequence, int first, int rows) {
  AttentionSequence slice = sequence;
  slice.rows = rows;
  slice.length = sequence.length - sequence.rows + first + rows;
  if (IsTree(sequence)) {
    slice.parents = sequence.parents.first(static_cast<size_t>(slice.length - sequence.tree_begin));
  }
  return slice;
}

// Calls f with each sequence as the kernel sees it, in order.
template <class F>
void ForEachLaunched(const AttentionShape& shape, absl::Span<const AttentionSequence> batch, const F& f) {
  for (const AttentionSequence& sequence : batch) {
    if (!shape.slides || !IsTree(sequence)) {
      f(sequence);
      continue;
    }
    for (int r = 0; r < sequence.rows; ++r) f(SliceRows(sequence, r, 1));
  }
}

// Writes a plan: first all sequences, then the tails of all rows.
class Writer {
 public:
  Writer(const AttentionShape& shape, const AttentionSize& size, char* plan)
      : shape_(shape), size_(size), layout_(size), plan_(plan) {
    At(layout_.split_size, 0) = kSplit;
  }

  void AddSequence(const AttentionSequence& sequence) {
    const int length = LaunchedLength(sequence), blocks = Blocks(shape_, length);
    BeginSequence(sequence_, row_, output_, length - (blocks - 1) * shape_.block_size);
    std::copy_n(sequence.blocks.begin(), blocks, Array(layout_.blocks) + block_);
    block_ += blocks;
    // Items that read the same keys are adjacent, so that they find the keys in the GPU's cache.
    for (int split = 0; split < Splits(length); ++split) {
      for (int tile = 0; tile < Tiles(shape_, sequence.rows); ++tile) {
        if (split < SplitsOfTile(shape_, sequence, tile)) AddItem(sequence_, tile, split);
      }
    }
    const int outputs_of_row = size_.partials > 0 ? Splits(length) : 1;
    for (int r = 0; r < sequence.rows; ++r) {
      At(layout_.row_partial, row_) = output_;
      At(layout_.row_splits, row_) = Splits(PositionOf(sequence, r) + 1);
      ++row_;
      output_ += outputs_of_row;
    }
    ++sequence_;
  }

  void EndSequences() {
    // Unused sequences have no rows and no blocks.
    for (; sequence_ <= size_.sequences; ++sequence_) BeginSequence(sequence_, row_, output_, 0);
    std::fill(valid() + item_, valid() + size_.items, false);
    std::fill(Array(layout_.row_splits) + row_, Array(layout_.row_splits) + size_.rows, 0);
    row_ = 0;
    item_ = size_.items;
  }

  void AddTails(const AttentionSequence& sequence) {
    for (int r = 0; r < sequence.rows; ++r, ++row_) {
      const int trunk = IsTree(sequence) ? TrunkSplits(sequence) : 0;
      BeginSequence(layout_.tails + row_, row_, At(layout_.row_partial, row_) + trunk, 1);
      if (!IsTree(sequence)) continue;
      AddSlots(sequence, trunk * kSplit, PositionOf(sequence, r), sequence.length - sequence.rows + r);
      for (int split = 0; split < Splits(TailLength(sequence, r)); ++split) {
        for (int tile = 0; tile < Tiles(shape_, 1); ++tile) AddItem(row_, tile, split);
      }
    }
  }

  void EndTails() {
    for (; row_ <= size_.rows; ++row_) BeginSequence(layout_.tails + row_, row_, 0, 0);
    std::fill(valid() + item_, valid() + size_.items + size_.tail_items, false);
  }

  size_t bytes() const { return layout_.blocks + static_cast<size_t>(block_) * sizeof(int32_t); }

 private:
  int32_t* Array(size_t offset) { return reinterpret_cast<int32_t*>(plan_ + offset); }
  int32_t& At(size_t offset, int index) { return Array(offset)[index]; }
  bool* valid() { return reinterpret_cast<bool*>(plan_ + layout_.valid); }

  void BeginSequence(int sequence, int row, int output, int last_length) {
    At(layout_.query_start, sequence) = row;
    At(layout_.output_start, sequence) = output;
    At(layout_.block_start, sequence) = block_;
    At(layout_.last_length, sequence) = last_length;
  }

  void AddItem(int sequence, int tile, int split) {
    At(layout_.item_sequence, item_) = sequence;
    At(layout_.item_tile, item_) = tile;
    At(layout_.item_split, item_) = split;
    valid()[item_] = true;
    ++item_;
  }

  // Adds the slots of positions `first` to `last`, where `last` is the position of the node in `slot`.
  void AddSlots(const AttentionSequence& tree, int first, int last, int slot) {
    int32_t* const slots = Array(layout_.blocks) + block_;
    int at = last;
    for (int node = slot - tree.tree_begin; node >= 0; node = tree.parents[static_cast<size_t>(node)]) {
      slots[at-- - first] = HeadsBefore(tree, tree.tree_begin + node);
    }
    for (; at >= first; --at) slots[at - first] = HeadsBefore(tree, at);
    block_ += last + 1 - first;
  }

  int32_t HeadsBefore(const AttentionSequence& tree, int slot) const {
    const int64_t block = tree.blocks[static_cast<size_t>(slot / shape_.block_size)];
    return static_cast<int32_t>(block * (shape_.block_stride / shape_.head_dim) + slot % shape_.block_size);
  }

  const AttentionShape& shape_;
  const AttentionSize& size_;
  const PlanLayout layout_;
  char* const plan_;
  int sequence_ = 0, row_ = 0, output_ = 0, block_ = 0, item_ = 0;
};

}  // namespace

int PathLength(absl::Span<const int> parents, int node) {
  int depth = 0;
  for (; node >= 0; node = parents[static_cast<size_t>(node)]) ++depth;
  return depth;
}

bool AttentionSize::Holds(const AttentionSize& other) const {
  // A launch that merges also merges short sequences, with one partial result per row.
  const int other_partials = partials > 0 ? std::max(other.partials, other.rows) : other.partials;
  return other.sequences <= sequences && other.rows <= rows && other.items <= items &&
         other.tail_items <= tail_items && other.blocks <= blocks && other_partials <= partials;
}

AttentionSize SizeOf(const AttentionShape& shape, absl::Span<const AttentionSequence> batch) {
  AttentionSize size;
  bool split = false;
  ForEachLaunched(shape, batch, [&](const AttentionSequence& sequence) {
    const int length = LaunchedLength(sequence);
    ++size.sequences;
    size.rows += sequence.rows;
    size.blocks += Blocks(shape, length);
    size.partials += sequence.rows * Splits(length);
    split |= length > kSplit;
    for (int tile = 0; tile < Tiles(shape, sequence.rows); ++tile) {
      size.items += SplitsOfTile(shape, sequence, tile);
    }
    for (int r = 0; IsTree(sequence) && r < sequence.rows; ++r) {
      size.tail_items += Splits(TailLength(sequence, r)) * Tiles(shape, 1);
      size.blocks += TailLength(sequence, r);
    }
  });
  if (!split) size.partials = 0;
  return size;
}

AttentionSize LargestSize(const AttentionShape& shape, int sequences, int rows, int length) {
  const int splits = Splits(length);
  // Each sequence may have one tile that is not full.
  return {.sequences = sequences,
          .rows = rows,
          .items = (rows * Group(shape) / kQueryTile + sequences) * splits,
          .blocks = sequences * Blocks(shape, length),
          .partials = splits > 1 ? rows * splits : 0};
}

AttentionSize LargestTails(const AttentionShape& shape, int rows, int depth) {
  const int length = kSplit - 1 + depth;
  return {.tail_items = rows * Splits(length) * Tiles(shape, 1), .blocks = rows * length};
}

int LargestBlocks(const AttentionShape& shape, const AttentionSize& size) {
  // Each split has an item, either of its sequence or of a tail.
  const int blocks = (size.items + size.tail_items) * CeilDivide(kSplit, shape.block_size);
  // The slots of the tails, and room in the trunks for their partial results.
  return size.tail_items > 0 ? blocks + size.tail_items * kSplit + size.rows : blocks;
}

absl::StatusOr<std::vector<AttentionPass>> CutIntoPasses(const AttentionShape& shape,
                                                         absl::Span<const AttentionSequence> batch,
                                                         const AttentionSize& capacity) {
  OUTRIDER_TRY(Check(shape, batch));
  std::vector<AttentionPass> passes(1);
  if (capacity.Holds(SizeOf(shape, batch))) {
    passes[0].sequences.assign(batch.begin(), batch.end());
    return passes;
  }
  int row = 0;
  for (const AttentionSequence& sequence : batch) {
    for (int first = 0; first < sequence.rows;) {
      std::vector<AttentionSequence>& pass = passes.back().sequences;
      const auto fits = [&](int rows) {
        pass.push_back(SliceRows(sequence, first, rows));
        const bool held = capacity.Holds(SizeOf(shape, pass));
        pass.pop_back();
        return held;
      };
      // Binary search for the most rows that fit: more rows need more of everything.
      int most = 0;
      for (int above = sequence.rows - first + 1; above - most > 1;) {
        const int middle = most + (above - most) / 2;
        (fits(middle) ? most : above) = middle;
      }
      if (most > 0) {
        pass.push_back(SliceRows(sequence, first, most));
        first += most;
        row += most;
      } else if (pass.empty()) {
        return absl::ResourceExhaustedError(absl::StrCat("attention: no room for a row at position ",
                                                         SliceRows(sequence, first, 1).length - 1));
      }
      if (first < sequence.rows) passes.push_back({row, {}});
    }
  }
  return passes;
}

PlanLayout::PlanLayout(const AttentionSize& size) : tails(size.sequences + 1) {
  bytes = 0;
  const auto take = [this](int count, size_t element = sizeof(int32_t)) {
    const size_t offset = bytes;
    bytes = (bytes + static_cast<size_t>(count) * element + 15) / 16 * 16;
    return offset;
  };
  const int sequences = tails + (size.tail_items > 0 ? size.rows + 1 : 0);
  const int items = size.items + size.tail_items;
  split_size = take(1);
  for (size_t* const array : {&query_start, &output_start, &block_start, &last_length})
    *array = take(sequences);
  for (size_t* const array : {&item_sequence, &item_tile, &item_split}) *array = take(items);
  for (size_t* const array : {&row_partial, &row_splits}) *array = take(size.rows);
  valid = take(items, sizeof(bool));
  blocks = take(size.blocks);
}

absl::StatusOr<size_t> WritePlan(const AttentionShape& shape, const AttentionSize& size,
                                 absl::Span<const AttentionSequence> batch, char* plan) {
  OUTRIDER_TRY(Check(shape, batch));
  const AttentionSize need = SizeOf(shape, batch);
  if (!size.Holds(need)) {
    return Invalid("attention: a batch of ", need.sequences, " sequences, ", need.rows, " rows, ", need.items,
                   " + ", need.tail_items, " items, ", need.blocks, " blocks and ", need.partials,
                   " partial results in a launch for ", size.sequences, ", ", size.rows, ", ", size.items,
                   " + ", size.tail_items, ", ", size.blocks, " and ", size.partials);
  }
  Writer writer(shape, size, plan);
  ForEachLaunched(shape, batch, [&](const AttentionSequence& sequence) { writer.AddSequence(sequence); });
  writer.EndSequences();
  if (size.tail_items > 0) {
    for (const AttentionSequence& sequence : batch) writer.AddTails(sequence);
    writer.EndTails();
  }
  return writer.bytes();
}

}  // namespace outrider::cuda
