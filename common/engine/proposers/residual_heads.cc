#include "common/engine/proposers/residual_heads.h"

#include <algorithm>
#include <cmath>

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

LogitsView RowsForNodes(const LogitsView& rows, std::span<Drafting* const> draftings,
                        std::vector<float>& storage) {
  std::vector<float> copies;
  int count = 0;
  for (size_t i = 0; i < draftings.size(); ++i) {
    const absl::Span<const float> row = rows.row(static_cast<int>(i));
    for (int r = 0; r < draftings[i]->rows; ++r) copies.insert(copies.end(), row.begin(), row.end());
    count += draftings[i]->rows;
  }
  storage = std::move(copies);
  return {storage.data(), count, rows.vocab};
}

absl::StatusOr<LogitsView> ResidualHeads::Level(int level, std::span<Drafting* const> draftings) {
  const ResidualHead& head = heads_[static_cast<size_t>(level)];
  if (absl::Status status = Apply(head, draftings); !status.ok()) return status;
  if (head.logits == nullptr) {
    const absl::StatusOr<LogitsView> rows = model_.Project(states_);
    if (!rows.ok()) return rows;
    return RowsForNodes(*rows, draftings, logits_);
  }
  logits_.resize(draftings.size() * static_cast<size_t>(vocab_));
  if (absl::Status status = head.logits->Multiply(states_, absl::MakeSpan(logits_)); !status.ok()) {
    return status;
  }
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
    if (absl::Status status = layer.in->Multiply(states_, absl::MakeSpan(inner_)); !status.ok())
      return status;
    AddToRows(layer.in_bias, inner_);
    for (float& x : inner_) x = Activate(kind_, x);
    if (layer.out != nullptr) {
      added_.resize(states_.size());
      if (absl::Status status = layer.out->Multiply(inner_, absl::MakeSpan(added_)); !status.ok())
        return status;
      AddToRows(layer.out_bias, added_);
    }
    const std::vector<float>& added = layer.out == nullptr ? inner_ : added_;
    for (size_t i = 0; i < states_.size(); ++i) states_[i] += added[i];
  }
  return absl::OkStatus();
}

}  // namespace outrider
