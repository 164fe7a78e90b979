#include "common/engine/proposers/eagle.h"

#include <algorithm>
#include <cstring>

#include "common/engine/proposers/layer_skip.h"

namespace outrider {

float* Eagle::StateOf(absl::Span<const BlockId> blocks, int slot) const {
  const size_t block = static_cast<size_t>(blocks[static_cast<size_t>(slot / parts_.block_size)]);
  const size_t size = static_cast<size_t>(parts_.block_size);
  return parts_.states.floats() +
         (block * size + static_cast<size_t>(slot) % size) * static_cast<size_t>(parts_.hidden_size);
}

void Eagle::OnHidden(const SequenceState& sequence, int first_slot, const HiddenView& hidden) {
  for (int r = 0; r < hidden.rows; ++r) {
    std::copy_n(hidden.row(r).data(), parts_.hidden_size, StateOf(sequence.blocks(), first_slot + r));
  }
}

void Eagle::CopyBlock(BlockId from, BlockId to) {
  const BlockId blocks[] = {from, to};
  std::copy_n(StateOf(blocks, 0), parts_.block_size * parts_.hidden_size, StateOf(blocks, parts_.block_size));
  parts_.layer->CopyBlock(from, to);
}

// The layer's own rows of drafted tokens are not kept: they followed its states, not the target's.
void Eagle::MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) {
  for (const SlotMove& move : moves) {
    std::copy_n(StateOf(blocks, move.from), parts_.hidden_size, StateOf(blocks, move.to));
  }
}

absl::StatusOr<LogitsView> Eagle::Level(int level, std::span<Drafting* const> draftings) {
  std::vector<SequenceRows> batch;
  if (level == 0) {
    int rows = 0;
    for (const Drafting* drafting : draftings) rows += static_cast<int>(MissingRows(*drafting).tokens.size());
    const bool too_many = rows > parts_.max_rows;
    for (Drafting* drafting : draftings) {
      if (!too_many) continue;
      if (absl::Status status = CatchUp(*drafting); !status.ok()) return status;
    }
  }
  ClearInputs();
  for (const Drafting* drafting : draftings) {
    const SequenceState& sequence = *drafting->sequence;
    const SequenceRows rows = level == 0 ? MissingRows(*drafting) : RowsOfLevel(*drafting);
    const Proposal& proposal = sequence.answer().proposal;
    for (size_t i = 0; i < rows.tokens.size(); ++i) {
      const float* before = StateOf(sequence.blocks(), rows.position + static_cast<int>(i) - 1);
      if (level > 0) {
        // The states are of the verdict's token, then of each node.
        const int parent = proposal[proposal.size() - rows.tokens.size() + i].parent;
        before = &drafting->states[static_cast<size_t>((parent + 1) * parts_.hidden_size)];
      }
      AddInput(rows.tokens[i], before);
    }
    batch.push_back(rows);
    batch.back().logit_rows = 0;
    batch.back().hidden_rows = drafting->rows;
  }
  const absl::StatusOr<HiddenView> states = Run(batch);
  if (!states.ok()) return states.status();
  outputs_.clear();
  int row = 0;
  for (Drafting* drafting : draftings) {
    if (level == 0) {
      drafting->sequence->set_proposer_computed(static_cast<int>(drafting->sequence->tokens().size()));
    }
    for (int r = 0; r < drafting->rows; ++r) {
      const float* const state = states->row(row++).data();
      drafting->states.insert(drafting->states.end(), state, state + parts_.hidden_size);
      outputs_.insert(outputs_.end(), state, state + parts_.hidden_size);
    }
  }
  return parts_.head.Project(outputs_, row);
}

SequenceRows Eagle::MissingRows(const Drafting& drafting) const {
  const SequenceState& sequence = *drafting.sequence;
  const int first = std::max(1, sequence.proposer_computed());
  return {.tokens = sequence.tokens().subspan(static_cast<size_t>(first)),
          .position = first,
          .blocks = sequence.blocks()};
}

absl::Status Eagle::CatchUp(Drafting& drafting) {
  SequenceState& sequence = *drafting.sequence;
  while (true) {
    std::vector<SequenceRows> batch = {MissingRows(drafting)};
    SequenceRows& rows = batch[0];
    const size_t count = std::min(rows.tokens.size() - 1, static_cast<size_t>(parts_.max_rows));
    if (count == 0) return absl::OkStatus();
    rows.tokens = rows.tokens.first(count);
    ClearInputs();
    for (size_t i = 0; i < count; ++i) {
      const float* const before = StateOf(sequence.blocks(), rows.position + static_cast<int>(i) - 1);
      AddInput(rows.tokens[i], before);
    }
    if (const auto states = Run(batch); !states.ok()) return states.status();
    sequence.set_proposer_computed(rows.position + static_cast<int>(count));
  }
}

void Eagle::AddInput(TokenId token, const float* before) {
  tokens_.push_back(token);
  states_.insert(states_.end(), before, before + parts_.hidden_size);
}

absl::StatusOr<HiddenView> Eagle::Run(std::vector<SequenceRows>& batch) {
  const size_t hidden = static_cast<size_t>(parts_.hidden_size);
  embedded_.resize(states_.size());
  if (absl::Status status = parts_.target.ReadEmbeddings(tokens_, absl::MakeSpan(embedded_)); !status.ok()) {
    return status;
  }
  inputs_.clear();
  for (size_t first = 0; first < states_.size(); first += hidden) {
    for (const std::vector<float>* part : {&embedded_, &states_}) {
      const auto row = part->begin() + static_cast<std::ptrdiff_t>(first);
      inputs_.insert(inputs_.end(), row, row + parts_.hidden_size);
    }
  }
  fused_.resize(states_.size());
  if (absl::Status status = parts_.fuse->Multiply(inputs_, absl::MakeSpan(fused_)); !status.ok())
    return status;
  for (size_t i = 0; i < fused_.size() && !parts_.fuse_bias.empty(); ++i)
    fused_[i] += parts_.fuse_bias[i % hidden];
  size_t first = 0;
  for (SequenceRows& rows : batch) {
    rows.embeddings = absl::MakeConstSpan(fused_).subspan(first, rows.tokens.size() * hidden);
    first += rows.tokens.size() * hidden;
  }
  const absl::StatusOr<LogitsView> pass = parts_.layer->Forward(batch, {});
  if (!pass.ok()) return pass.status();
  return pass->hidden;
}

}  // namespace outrider
