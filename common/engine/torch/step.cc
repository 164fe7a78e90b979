#include "common/engine/torch/step.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>

namespace outrider::libtorch {
namespace {

// The maximum number of blocks that a decode step gathers for each one that it needs.
constexpr uint64_t kMaxPadding = 4;

using Indices = std::vector<int64_t>;

// The slots of the path to the node in `slot` (SequenceRows::parents): its ancestors in order of depth, then
// itself. They have the positions from tree_begin on. Empty for a token before the tree.
std::vector<int> PathTo(const SequenceRows& sequence, int slot) {
  std::vector<int> path;
  if (sequence.parents.empty()) return path;
  for (int node = slot - sequence.tree_begin; node >= 0; node = sequence.parents[static_cast<size_t>(node)]) {
    path.push_back(sequence.tree_begin + node);
  }
  std::reverse(path.begin(), path.end());
  return path;
}

// The position of the token in `slot`, which is a slot of the sequence's rows or before them.
int PositionOf(const SequenceRows& sequence, int slot) {
  if (sequence.parents.empty() || slot < sequence.tree_begin) return slot;
  return sequence.tree_begin + static_cast<int>(PathTo(sequence, slot).size()) - 1;
}

// A sequence of the batch and its first row in the step.
struct Member {
  const SequenceRows* sequence;
  int64_t first_row;
};

uint64_t BlocksOf(const SequenceRows& sequence, int block_size) {
  const uint64_t end = static_cast<uint64_t>(sequence.position) + sequence.tokens.size();
  return (end + static_cast<uint64_t>(block_size) - 1) / static_cast<uint64_t>(block_size);
}

std::vector<Member> List(absl::Span<const SequenceRows> batch) {
  std::vector<Member> members;
  int64_t row = 0;
  for (const SequenceRows& sequence : batch) {
    members.push_back({&sequence, row});
    row += static_cast<int64_t>(sequence.tokens.size());
  }
  return members;
}

// Groups sequences by number of rows, and by number of blocks up to a factor of two, so that at most half of
// a table is padding.
std::vector<std::vector<Member>> Group(absl::Span<const SequenceRows> batch, int block_size) {
  std::map<std::pair<size_t, uint64_t>, std::vector<Member>> groups;
  for (const Member& member : List(batch)) {
    const SequenceRows& sequence = *member.sequence;
    groups[{sequence.tokens.size(), std::bit_ceil(BlocksOf(sequence, block_size))}].push_back(member);
  }
  std::vector<std::vector<Member>> listed;
  for (auto& [key, members] : groups) listed.push_back(std::move(members));
  return listed;
}

at::Tensor Upload(const Indices& indices, const StepOptions& options) {
  return at::tensor(indices, at::kLong).to(options.tensors.device());
}

// -infinity where `hidden` is true, else 0, repeated for each query head that shares a KV head.
at::Tensor Mask(const at::Tensor& hidden, const StepOptions& options) {
  return at::zeros(hidden.sizes(), options.tensors)
      .masked_fill_(hidden, -std::numeric_limits<double>::infinity())
      .repeat({1, 1, options.heads_per_kv_head, 1});
}

// Sets `hidden` [1, rows, slots] for the tree of a sequence: hides from each row the nodes that are not on
// the row's path.
void HideOtherPaths(const SequenceRows& sequence, const at::Tensor& hidden) {
  const int64_t rows = hidden.size(1), nodes = static_cast<int64_t>(sequence.parents.size());
  const at::Tensor others = at::ones({rows, nodes}, at::kBool);
  auto is_other = others.accessor<bool, 2>();
  for (int64_t r = 0; r < rows; ++r) {
    for (const int slot : PathTo(sequence, sequence.position + static_cast<int>(r))) {
      is_other[r][slot - sequence.tree_begin] = false;
    }
  }
  hidden.narrow(-1, sequence.tree_begin, nodes).copy_(others);
}

// The positions of the tokens in each member's slots, [members, 1, 1, slots].
at::Tensor SlotPositions(const std::vector<Member>& members, const at::Tensor& slots) {
  const int64_t count = static_cast<int64_t>(members.size());
  at::Tensor positions = slots.repeat({count, 1, 1, 1});
  for (int64_t m = 0; m < count; ++m) {
    const SequenceRows& sequence = *members[static_cast<size_t>(m)].sequence;
    if (sequence.parents.empty()) continue;
    const int end = sequence.tree_begin + static_cast<int>(sequence.parents.size());
    Indices of_nodes;
    for (int slot = sequence.tree_begin; slot < end; ++slot) of_nodes.push_back(PositionOf(sequence, slot));
    positions[m]
        .narrow(-1, sequence.tree_begin, end - sequence.tree_begin)
        .copy_(at::tensor(of_nodes, at::kLong));
  }
  return positions;
}

// `blocks` is the width of the table.
AttentionGroup MakeGroup(const std::vector<Member>& members, uint64_t blocks, const Step& step,
                         const StepOptions& options) {
  AttentionGroup group;
  group.sequences = static_cast<int64_t>(members.size());
  group.rows_each = static_cast<int64_t>(members[0].sequence->tokens.size());
  Indices rows, row_slots, table;
  for (const Member& member : members) {
    for (int64_t r = 0; r < group.rows_each; ++r) {
      rows.push_back(member.first_row + r);
      row_slots.push_back(member.sequence->position + r);
    }
    const uint64_t own = BlocksOf(*member.sequence, options.block_size);
    for (uint64_t b = 0; b < blocks; ++b) table.push_back(member.sequence->blocks[std::min(b, own - 1)]);
  }
  group.rows = Upload(rows, options);
  group.table = Upload(table, options).view({group.sequences, -1});
  const at::Tensor slots = at::arange(group.table.size(1) * options.block_size, group.rows.options());
  const std::array<int64_t, 4> of_rows = {group.sequences, 1, group.rows_each, 1};
  at::Tensor hidden = slots > Upload(row_slots, options).view(of_rows);
  if (options.first_position > 0) hidden |= slots < options.first_position;
  group.unwritten = hidden.select(2, group.rows_each - 1).unsqueeze(-1).clone();
  for (size_t m = 0; m < members.size(); ++m) {
    if (members[m].sequence->parents.empty()) continue;
    HideOtherPaths(*members[m].sequence, hidden[static_cast<int64_t>(m)]);
  }
  group.mask = Mask(hidden, options);
  if (options.sliding_window > 0) {
    const at::Tensor positions = step.positions.index_select(0, group.rows).view(of_rows);
    const at::Tensor passed = SlotPositions(members, slots) <= positions - options.sliding_window;
    group.sliding_mask = Mask(hidden | passed, options);
  }
  return group;
}

// A step without its groups.
Step ListRows(absl::Span<const SequenceRows> batch, const StepOptions& options) {
  Indices tokens, positions, blocks, slots, logit_rows;
  for (const SequenceRows& sequence : batch) {
    const int64_t count = static_cast<int64_t>(sequence.tokens.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t slot = sequence.position + i;
      if (i >= count - sequence.logit_rows) logit_rows.push_back(static_cast<int64_t>(tokens.size()));
      tokens.push_back(sequence.tokens[static_cast<size_t>(i)]);
      positions.push_back(PositionOf(sequence, static_cast<int>(slot)));
      blocks.push_back(sequence.blocks[static_cast<size_t>(slot / options.block_size)]);
      slots.push_back(slot % options.block_size);
    }
  }
  Step step;
  step.tokens = Upload(tokens, options);
  step.positions = Upload(positions, options);
  step.blocks = Upload(blocks, options);
  step.slots = Upload(slots, options);
  step.logit_rows = Upload(logit_rows, options);
  return step;
}

// Adds the rows whose hidden states are wanted, and those whose embeddings are given.
void ListHiddenRows(absl::Span<const SequenceRows> batch, const StepOptions& options, Step& step) {
  Indices wanted, given;
  std::vector<at::Tensor> embeddings;
  int64_t end = 0;
  for (const SequenceRows& sequence : batch) {
    end += static_cast<int64_t>(sequence.tokens.size());
    for (int64_t row = end - sequence.hidden_rows; row < end; ++row) wanted.push_back(row);
    if (sequence.embeddings.empty()) continue;
    embeddings.push_back(RowsOf(sequence.embeddings, options.embedding_columns));
    for (int64_t row = end - embeddings.back().size(0); row < end; ++row) given.push_back(row);
  }
  if (!wanted.empty()) step.hidden_rows = Upload(wanted, options);
  if (given.empty()) return;
  step.embedded_rows = Upload(given, options);
  step.embeddings = at::cat(embeddings).to(options.tensors.device());
}

}  // namespace

Step MakeStep(absl::Span<const SequenceRows> batch, const StepOptions& options, const PassOptions& pass) {
  Step step = ListRows(batch, options);
  step.layers = pass.layers;
  step.taps.assign(pass.taps.begin(), pass.taps.end());
  ListHiddenRows(batch, options, step);
  for (const std::vector<Member>& members : Group(batch, options.block_size)) {
    uint64_t blocks = 0;
    for (const Member& member : members) {
      blocks = std::max(blocks, BlocksOf(*member.sequence, options.block_size));
    }
    step.groups.push_back(MakeGroup(members, blocks, step, options));
  }
  return step;
}

at::Tensor RowsOf(absl::Span<const float> numbers, int64_t columns) {
  const std::array<int64_t, 2> sizes = {static_cast<int64_t>(numbers.size()) / columns, columns};
  return at::from_blob(const_cast<float*>(numbers.data()), sizes, at::kFloat);
}

std::optional<Step> MakeDecodeStep(absl::Span<const SequenceRows> batch, BlockId spare,
                                   const StepOptions& options) {
  const size_t rows_each = batch[0].tokens.size();
  uint64_t longest = 0, needed = 0;
  for (const SequenceRows& sequence : batch) {
    if (sequence.tokens.size() != rows_each) return std::nullopt;
    if (static_cast<size_t>(sequence.logit_rows) != rows_each) return std::nullopt;
    if (sequence.hidden_rows > 0 || !sequence.embeddings.empty()) return std::nullopt;
    longest = std::max(longest, BlocksOf(sequence, options.block_size));
    needed += BlocksOf(sequence, options.block_size);
  }
  const uint64_t sequences = std::bit_ceil(batch.size()), blocks = std::bit_ceil(longest);
  if (sequences * rows_each > uint64_t{kMaxDecodeRows} || sequences * blocks > kMaxPadding * needed)
    return std::nullopt;

  const std::vector<TokenId> tokens(rows_each, 0);
  const std::vector<BlockId> spares(rows_each, spare);  // enough for any block size
  std::vector<SequenceRows> padded(batch.begin(), batch.end());
  padded.resize(
      sequences,
      {.tokens = tokens, .position = 0, .blocks = spares, .logit_rows = static_cast<int>(rows_each)});
  Step step = ListRows(padded, options);
  step.groups.push_back(MakeGroup(List(padded), blocks, step, options));
  step.is_decode = true;
  return step;
}

std::vector<at::Tensor> TensorsOf(const Step& step) {
  std::vector<at::Tensor> tensors = {step.tokens, step.positions, step.blocks, step.slots, step.logit_rows};
  for (const AttentionGroup& group : step.groups) {
    tensors.insert(tensors.end(), {group.rows, group.table, group.mask, group.unwritten});
    if (group.sliding_mask.defined()) tensors.push_back(group.sliding_mask);
  }
  return tensors;
}

}  // namespace outrider::libtorch
