#include "common/engine/proposers/eagle.h"

#include <algorithm>
#include <cmath>

#include "common/engine/decoder/frequent_head.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// y = x / sqrt(mean(x^2) + epsilon) * weight.
void RmsNorm(const float* x, const std::vector<float>& weight, float epsilon, float* y) {
  const size_t n = weight.size();
  const float scale = 1 / std::sqrt(Dot(x, x, n) / static_cast<float>(n) + epsilon);
  for (size_t i = 0; i < n; ++i) y[i] = x[i] * scale * weight[i];
}

}  // namespace

absl::StatusOr<LogitsView> DraftHead::Project(absl::Span<const float> states,
                                              std::span<const absl::Span<const TokenId>> others) {
  if (target_ != nullptr) return target_->Project(states);
  const size_t vocab = static_cast<size_t>(own_.vocab);
  const size_t columns = own_.tokens.empty() ? vocab : own_.tokens.size();
  const int rows = static_cast<int>(others.size());
  few_.resize(others.size() * columns);
  OUTRIDER_TRY(own_.matrix->Multiply(states, absl::MakeSpan(few_)));
  for (float& logit : few_) logit = Capped(logit, own_.softcap);
  if (own_.tokens.empty()) return LogitsView{few_.data(), rows, own_.vocab};
  // Fill whole rows again: controls have overwritten the previous ones.
  all_.resize(others.size() * vocab);
  const size_t hidden = states.size() / others.size();
  for (size_t r = 0; r < others.size(); ++r) {
    const absl::Span<float> logits = absl::MakeSpan(all_).subspan(r * vocab, vocab);
    SpreadLogits(absl::MakeConstSpan(few_).subspan(r * columns, columns), own_.tokens, logits);
    if (own_.text == nullptr) continue;
    OUTRIDER_TRY(own_.text->SetLogits(states.subspan(r * hidden, hidden), others[r], logits));
  }
  return LogitsView{all_.data(), rows, own_.vocab};
}

float* Eagle::StateOf(absl::Span<const BlockId> blocks, int slot) const {
  const size_t block = static_cast<size_t>(blocks[static_cast<size_t>(slot / parts_.block_size)]);
  const size_t size = static_cast<size_t>(parts_.block_size);
  return parts_.states.floats() +
         (block * size + static_cast<size_t>(slot) % size) * static_cast<size_t>(parts_.hidden_size);
}

void Eagle::OnHidden(std::span<const HiddenOfSequence> hidden) {
  const size_t size = static_cast<size_t>(parts_.hidden_size);
  if (parts_.eagle3) {
    // The streams of all sequences are fused at once.
    inputs_.clear();
    for (const HiddenOfSequence& each : hidden) {
      for (int r = 0; r < each.states.rows; ++r) {
        const absl::Span<const float> streams = each.states.row(r).subspan(size);
        inputs_.insert(inputs_.end(), streams.begin(), streams.end());
      }
    }
    fused_.Update(Fuse(inputs_));
  }
  size_t fused = 0;
  for (const HiddenOfSequence& each : hidden) {
    for (int r = 0; r < each.states.rows; ++r) {
      const float* const state = parts_.eagle3 ? &rows_[fused++ * size] : each.states.row(r).data();
      std::copy_n(state, size, StateOf(each.sequence->blocks(), each.first_slot + r));
    }
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

absl::StatusOr<LogitsView> Eagle::LogitsOfLevel(int level, std::span<Drafting* const> draftings) {
  if (!fused_.ok()) return fused_;
  std::vector<SequenceRows> batch;
  if (level == 0) {
    int rows = 0;
    for (const Drafting* drafting : draftings) rows += static_cast<int>(MissingRows(*drafting).tokens.size());
    for (Drafting* drafting : draftings) {
      if (rows <= parts_.max_rows) break;
      OUTRIDER_TRY(CatchUp(*drafting));
    }
  }
  tokens_.clear();
  states_.clear();
  for (const Drafting* drafting : draftings) {
    const SequenceState& sequence = *drafting->sequence;
    const SequenceRows rows = level == 0 ? MissingRows(*drafting) : RowsOfLevel(*drafting);
    for (size_t i = 0; i < rows.tokens.size(); ++i) {
      const float* before = StateOf(sequence.blocks(), rows.position + static_cast<int>(i) - 1);
      if (level > 0) {
        // The states are of the verdict's token, then of each node that has a row.
        const size_t hidden = static_cast<size_t>(parts_.hidden_size);
        const std::span<const int> parents = sequence.parents();
        const size_t parent = parents.empty()
                                  ? drafting->states.size() / hidden - 1
                                  : static_cast<size_t>(parents[parents.size() - rows.tokens.size() + i] + 1);
        before = &drafting->states[parent * hidden];
      }
      AddInput(rows.tokens[i], before);
    }
    batch.push_back(rows);
    batch.back().logit_rows = 0;
    batch.back().hidden_rows = drafting->rows;
  }
  const HiddenView states = OUTRIDER_TRY(Run(batch));
  outputs_.clear();
  others_.clear();
  int row = 0;
  for (Drafting* drafting : draftings) {
    if (level == 0) {
      const absl::Span<const TokenId> text = drafting->sequence->tokens();
      drafting->sequence->set_proposer_computed(static_cast<int>(text.size()));
      drafting->others = parts_.head.OthersIn(text);
    }
    others_.insert(others_.end(), static_cast<size_t>(drafting->rows), drafting->others);
    for (int r = 0; r < drafting->rows; ++r) {
      const float* const state = states.row(row++).data();
      drafting->states.insert(drafting->states.end(), state, state + parts_.hidden_size);
      outputs_.insert(outputs_.end(), state, state + parts_.hidden_size);
      if (!parts_.eagle3) continue;
      float* const output = &outputs_[outputs_.size() - static_cast<size_t>(parts_.hidden_size)];
      RmsNorm(output, parts_.eagle3->head_norm, parts_.eagle3->epsilon, output);
    }
  }
  return parts_.head.Project(outputs_, others_);
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
    tokens_.clear();
    states_.clear();
    for (size_t i = 0; i < count; ++i) {
      const float* const before = StateOf(sequence.blocks(), rows.position + static_cast<int>(i) - 1);
      AddInput(rows.tokens[i], before);
    }
    OUTRIDER_TRY(Run(batch));
    sequence.set_proposer_computed(rows.position + static_cast<int>(count));
  }
}

absl::StatusOr<HiddenView> Eagle::Run(std::vector<SequenceRows>& batch) {
  embedded_.resize(states_.size());
  OUTRIDER_TRY(parts_.target.ReadEmbeddings(tokens_, absl::MakeSpan(embedded_)));
  OUTRIDER_TRY(MakeRows());
  const size_t columns = rows_.size() / tokens_.size();
  size_t first = 0;
  for (SequenceRows& rows : batch) {
    rows.embeddings = absl::MakeConstSpan(rows_).subspan(first, rows.tokens.size() * columns);
    first += rows.tokens.size() * columns;
  }
  const LogitsView pass = OUTRIDER_TRY(parts_.layer->Forward(batch, {}));
  return pass.hidden;
}

absl::Status Eagle::MakeRows() {
  if (parts_.eagle3) {
    MakeRowsOfEagle3(*parts_.eagle3);
    return absl::OkStatus();
  }
  const size_t hidden = static_cast<size_t>(parts_.hidden_size);
  inputs_.clear();
  for (size_t first = 0; first < states_.size(); first += hidden) {
    for (const std::vector<float>* part : {&embedded_, &states_}) {
      const auto row = part->begin() + static_cast<std::ptrdiff_t>(first);
      inputs_.insert(inputs_.end(), row, row + parts_.hidden_size);
    }
  }
  return Fuse(inputs_);
}

void Eagle::MakeRowsOfEagle3(const Eagle3Parts& eagle3) {
  const size_t hidden = static_cast<size_t>(parts_.hidden_size);
  rows_.resize(3 * states_.size());
  for (size_t first = 0; first < states_.size(); first += hidden) {
    float* const residual = &rows_[3 * first];
    float *const embedding = residual + hidden, *const state = embedding + hidden;
    RmsNorm(&embedded_[first], eagle3.embedding_norm, eagle3.epsilon, embedding);
    RmsNorm(&states_[first], eagle3.state_norm, eagle3.epsilon, state);
    std::copy_n(eagle3.norm_before_residual ? state : &states_[first], hidden, residual);
  }
}

absl::Status Eagle::Fuse(absl::Span<const float> rows) {
  const size_t hidden = static_cast<size_t>(parts_.hidden_size);
  const size_t columns = (parts_.eagle3 ? parts_.eagle3->taps.size() : 2) * hidden;
  rows_.resize(rows.size() / columns * hidden);
  OUTRIDER_TRY(parts_.fuse->Multiply(rows, absl::MakeSpan(rows_)));
  for (size_t i = 0; i < rows_.size() && !parts_.fuse_bias.empty(); ++i)
    rows_[i] += parts_.fuse_bias[i % hidden];
  return absl::OkStatus();
}

}  // namespace outrider
