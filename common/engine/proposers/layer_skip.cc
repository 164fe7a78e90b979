#include "common/engine/proposers/layer_skip.h"

#include <vector>

#include "common/engine/proposers/residual_heads.h"

namespace outrider {

SequenceRows RowsOfLevel(const Drafting& drafting) {
  const SequenceState& sequence = *drafting.sequence;
  const int first = static_cast<int>(sequence.tokens().size()) - drafting.rows;
  SequenceRows rows{.tokens = sequence.tokens().subspan(static_cast<size_t>(first)),
                    .position = first,
                    .blocks = sequence.blocks(),
                    .logit_rows = drafting.rows};
  if (!sequence.parents().empty()) {
    rows.tree_begin = sequence.tree_begin();
    rows.parents = sequence.parents();
  }
  return rows;
}

absl::StatusOr<LogitsView> LayerSkip::Level(int /*level*/, std::span<Drafting* const> draftings) {
  std::vector<SequenceRows> batch;
  for (const Drafting* drafting : draftings) batch.push_back(RowsOfLevel(*drafting));
  return model_.Forward(batch, {.layers = layers_});
}

absl::StatusOr<LogitsView> LookAhead::Level(int level, std::span<Drafting* const> draftings) {
  if (level == 0) {
    if (absl::Status status = Compute(draftings); !status.ok()) return status;
  }
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
  const absl::StatusOr<LogitsView> logits = model_.Forward(batch, {});
  if (!logits.ok()) return logits.status();
  vocab_ = logits->vocab;
  int row = 0;
  for (Drafting* drafting : draftings) {
    for (int level = 0; level < drafting->request.draft_tokens; ++level) {
      const absl::Span<const float> values = logits->row(row++);
      drafting->states.insert(drafting->states.end(), values.begin(), values.end());
    }
  }
  return absl::OkStatus();
}

}  // namespace outrider
