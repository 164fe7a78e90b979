#include "common/engine/cuda/attention_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace outrider::cuda {
namespace {

int CeilDivide(int a, int b) { return (a + b - 1) / b; }
int Group(const AttentionShape& shape) { return shape.query_heads / shape.kv_heads; }
int Tiles(const AttentionShape& shape, int rows) { return CeilDivide(rows * Group(shape), kQueryTile); }
int Splits(int length) { return CeilDivide(length, kSplit); }
int Blocks(const AttentionShape& shape, int length) { return CeilDivide(length, shape.block_size); }

// The number of splits that a tile attends to, which is that of its last row.
int SplitsOfTile(const AttentionShape& shape, const AttentionSequence& sequence, int tile) {
  const int last_row = std::min(sequence.rows, CeilDivide((tile + 1) * kQueryTile, Group(shape))) - 1;
  return Splits(sequence.length - sequence.rows + last_row + 1);
}

absl::Status Check(const AttentionShape& shape, const AttentionSequence& sequence) {
  if (sequence.rows < 1 || sequence.length < sequence.rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: ", sequence.rows, " rows of a sequence of ", sequence.length));
  }
  if (sequence.blocks.size() < static_cast<size_t>(Blocks(shape, sequence.length))) {
    return absl::InvalidArgumentError(absl::StrCat("attention: ", sequence.blocks.size(), " blocks of ",
                                                   shape.block_size, " for a sequence of ", sequence.length));
  }
  return absl::OkStatus();
}

// `rows` rows of a sequence from row `first` on. They need no positions beyond their own.
AttentionSequence SliceRows(const AttentionSequence& sequence, int first, int rows) {
  return {rows, sequence.length - sequence.rows + first + rows, sequence.blocks};
}

}  // namespace

bool AttentionSize::Holds(const AttentionSize& other) const {
  // A launch that merges also merges short sequences, with one partial result per row.
  const int other_partials = partials > 0 ? std::max(other.partials, other.rows) : other.partials;
  return other.sequences <= sequences && other.rows <= rows && other.items <= items &&
         other.blocks <= blocks && other_partials <= partials;
}

AttentionSize SizeOf(const AttentionShape& shape, absl::Span<const AttentionSequence> batch) {
  AttentionSize size;
  bool split = false;
  for (const AttentionSequence& sequence : batch) {
    ++size.sequences;
    size.rows += sequence.rows;
    size.blocks += Blocks(shape, sequence.length);
    size.partials += sequence.rows * Splits(sequence.length);
    split |= sequence.length > kSplit;
    for (int tile = 0; tile < Tiles(shape, sequence.rows); ++tile) {
      size.items += SplitsOfTile(shape, sequence, tile);
    }
  }
  if (!split) size.partials = 0;
  return size;
}

AttentionSize LargestSize(const AttentionShape& shape, int sequences, int rows, int length) {
  const int splits = Splits(length);
  AttentionSize size;
  size.sequences = sequences;
  size.rows = rows;
  // Each sequence may have one tile that is not full.
  size.items = (rows * Group(shape) / kQueryTile + sequences) * splits;
  size.blocks = sequences * Blocks(shape, length);
  size.partials = splits > 1 ? rows * splits : 0;
  return size;
}

absl::StatusOr<std::vector<AttentionPass>> CutIntoPasses(const AttentionShape& shape,
                                                         absl::Span<const AttentionSequence> batch,
                                                         const AttentionSize& capacity) {
  for (const AttentionSequence& sequence : batch) {
    if (auto status = Check(shape, sequence); !status.ok()) return status;
  }
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

PlanLayout::PlanLayout(const AttentionSize& size) {
  bytes = 0;
  const auto take = [this](int count, size_t element) {
    const size_t offset = bytes;
    bytes = (bytes + static_cast<size_t>(count) * element + 15) / 16 * 16;
    return offset;
  };
  split = take(1, sizeof(int32_t));
  query_start = take(size.sequences + 1, sizeof(int32_t));
  output_start = take(size.sequences + 1, sizeof(int32_t));
  block_start = take(size.sequences + 1, sizeof(int32_t));
  last_length = take(size.sequences, sizeof(int32_t));
  item_sequence = take(size.items, sizeof(int32_t));
  item_tile = take(size.items, sizeof(int32_t));
  item_split = take(size.items, sizeof(int32_t));
  row_partial = take(size.rows, sizeof(int32_t));
  row_splits = take(size.rows, sizeof(int32_t));
  valid = take(size.items, sizeof(bool));
  blocks = take(size.blocks, sizeof(int32_t));
}

absl::StatusOr<size_t> WritePlan(const AttentionShape& shape, const AttentionSize& size,
                                 absl::Span<const AttentionSequence> batch, char* plan) {
  for (const AttentionSequence& sequence : batch) {
    if (auto status = Check(shape, sequence); !status.ok()) return status;
  }
  const AttentionSize need = SizeOf(shape, batch);
  if (!size.Holds(need)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention: a batch of ", need.sequences, " sequences, ", need.rows, " rows, ", need.items,
        " items, ", need.blocks, " blocks and ", need.partials, " partial results in a launch for ",
        size.sequences, ", ", size.rows, ", ", size.items, ", ", size.blocks, " and ", size.partials));
  }
  const PlanLayout layout(size);
  const auto ints = [plan](size_t offset) { return reinterpret_cast<int32_t*>(plan + offset); };
  int32_t* const query_start = ints(layout.query_start);
  int32_t* const output_start = ints(layout.output_start);
  int32_t* const block_start = ints(layout.block_start);
  int32_t* const last_length = ints(layout.last_length);
  bool* const valid = reinterpret_cast<bool*>(plan + layout.valid);

  *ints(layout.split) = kSplit;
  int row = 0, output = 0, block = 0, item = 0;
  for (int s = 0; s < size.sequences; ++s) {
    query_start[s] = row;
    output_start[s] = output;
    block_start[s] = block;
    last_length[s] = 0;
    if (s >= need.sequences) continue;  // an unused sequence: no rows, no blocks

    const AttentionSequence& sequence = batch[static_cast<size_t>(s)];
    const int blocks = Blocks(shape, sequence.length), splits = Splits(sequence.length);
    std::copy_n(sequence.blocks.begin(), blocks, ints(layout.blocks) + block);
    block += blocks;
    last_length[s] = sequence.length - (blocks - 1) * shape.block_size;
    // Items that read the same keys are adjacent, so that they find the keys in the cache.
    for (int split = 0; split < splits; ++split) {
      for (int tile = 0; tile < Tiles(shape, sequence.rows); ++tile) {
        if (split >= SplitsOfTile(shape, sequence, tile)) continue;
        ints(layout.item_sequence)[item] = s;
        ints(layout.item_tile)[item] = tile;
        ints(layout.item_split)[item] = split;
        valid[item] = true;
        ++item;
      }
    }
    const int outputs_of_row = size.partials > 0 ? splits : 1;
    for (int r = 0; r < sequence.rows; ++r) {
      ints(layout.row_partial)[row] = output;
      ints(layout.row_splits)[row] = Splits(sequence.length - sequence.rows + r + 1);
      ++row;
      output += outputs_of_row;
    }
  }
  query_start[size.sequences] = row;
  output_start[size.sequences] = output;
  block_start[size.sequences] = block;
  std::fill(valid + item, valid + size.items, false);
  std::fill(ints(layout.row_splits) + row, ints(layout.row_splits) + size.rows, 0);
  return layout.blocks + static_cast<size_t>(block) * sizeof(int32_t);
}

}  // namespace outrider::cuda
