#include "common/engine/proposers/target_proposers.h"

#include <algorithm>
#include <cmath>

#include "common/spec/status.h"

namespace outrider {
namespace {

float Activate(ProposerKind kind, float x) {
  return kind == ProposerKind::kMedusa ? x / (1 + std::exp(-x)) : std::max(x, 0.0f);
}

// y[r] += bias for each row.
void AddToRows(absl::Span<const float> bias, std::vector<float>& y) {
  for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
}

}  // namespace

absl::StatusOr<LogitsView> ResidualHeads::LogitsOfLevel(int level, std::span<Drafting* const> draftings) {
  const ResidualHead& head = heads_[static_cast<size_t>(level)];
  OUTRIDER_TRY(Apply(head, draftings));
  if (head.logits == nullptr) {
    const LogitsView rows = OUTRIDER_TRY(model_.Project(states_));
    return RowsForNodes(rows, draftings, logits_);
  }
  logits_.resize(draftings.size() * static_cast<size_t>(vocab_));
  OUTRIDER_TRY(head.logits->Multiply(states_, absl::MakeSpan(logits_)));
  return RowsForNodes({logits_.data(), static_cast<int>(draftings.size()), vocab_}, draftings, logits_);
}

absl::Status ResidualHeads::Apply(const ResidualHead& head, std::span<Drafting* const> draftings) {
  const size_t hidden = static_cast<size_t>(hidden_size_);
  states_.clear();
  for (const Drafting* drafting : draftings) {
    states_.insert(states_.end(), drafting->hidden.begin(), drafting->hidden.begin() + hidden_size_);
  }
  for (const ResidualHead::Layer& layer : head.layers) {
    inner_.resize(states_.size() / hidden * layer.in_bias.size());
    OUTRIDER_TRY(layer.in->Multiply(states_, absl::MakeSpan(inner_)));
    AddToRows(layer.in_bias, inner_);
    for (float& x : inner_) x = Activate(kind_, x);
    if (layer.out != nullptr) {
      added_.resize(states_.size());
      OUTRIDER_TRY(layer.out->Multiply(inner_, absl::MakeSpan(added_)));
      AddToRows(layer.out_bias, added_);
    }
    const std::vector<float>& added = layer.out == nullptr ? inner_ : added_;
    for (size_t i = 0; i < states_.size(); ++i) states_[i] += added[i];
  }
  return absl::OkStatus();
}

absl::StatusOr<LogitsView> LayerSkip::LogitsOfLevel(int /*level*/, std::span<Drafting* const> draftings) {
  std::vector<SequenceRows> batch;
  for (const Drafting* drafting : draftings) batch.push_back(RowsOfLevel(*drafting));
  return model_.Forward(batch, {.layers = layers_});
}

absl::StatusOr<LogitsView> LookAhead::LogitsOfLevel(int level, std::span<Drafting* const> draftings) {
  if (level == 0) OUTRIDER_TRY(Compute(draftings));
  const size_t vocab = static_cast<size_t>(vocab_);
  logits_.clear();
  for (const Drafting* drafting : draftings) {
    const auto row =
        drafting->states.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(level) * vocab);
    logits_.insert(logits_.end(), row, row + vocab_);
  }
  return RowsForNodes({logits_.data(), static_cast<int>(draftings.size()), vocab_}, draftings, logits_);
}

absl::Status LookAhead::Compute(std::span<Drafting* const> draftings) {
  std::vector<std::vector<TokenId>> tokens;
  tokens.reserve(draftings.size());
  std::vector<SequenceRows> batch;
  for (const Drafting* drafting : draftings) {
    const SequenceState& sequence = *drafting->sequence;
    const int depth = drafting->request.draft_tokens;
    tokens.emplace_back(static_cast<size_t>(depth), sequence.tokens().back());
    batch.push_back({.tokens = tokens.back(),
                     .position = static_cast<int>(sequence.tokens().size()) - 1,
                     .blocks = sequence.blocks(),
                     .logit_rows = depth});
    batch.back().embeddings =
        absl::MakeConstSpan(embeddings_).first(static_cast<size_t>((depth - 1) * hidden_size_));
  }
  const LogitsView logits = OUTRIDER_TRY(model_.Forward(batch, {}));
  vocab_ = logits.vocab;
  int row = 0;
  for (Drafting* drafting : draftings) {
    for (int level = 0; level < drafting->request.draft_tokens; ++level) {
      const absl::Span<const float> values = logits.row(row++);
      drafting->states.insert(drafting->states.end(), values.begin(), values.end());
    }
  }
  return absl::OkStatus();
}

}  // namespace outrider
