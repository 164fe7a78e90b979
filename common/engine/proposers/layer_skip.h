// Self-speculative decoding (Elhoushi et al. 2024, "LayerSkip: Enabling Early Exit Inference and
// Self-Speculative Decoding", arXiv 2404.16710): the target's first layers, its final norm and its head are
// the draft. They share the target's cache: what a draft wrote there is not computed again when it is
// verified, and its rows go on from the residual streams that it left (SequenceState::BegunRows).
#pragma once

#include "common/engine/model.h"
#include "common/engine/proposers/proposer.h"

namespace outrider {

class LayerSkip final : public Proposer {
 public:
  // The model outlives it; `layers` is less than it has.
  LayerSkip(Model& model, int layers, int max_tokens)
      : model_(model), layers_(layers), max_tokens_(max_tokens) {}

  ProposerKind kind() const override { return ProposerKind::kLayerSkip; }
  int max_tokens() const override { return max_tokens_; }
  int SlotsFor(int nodes, int /*depth*/) const override { return 1 + nodes; }
  absl::StatusOr<LogitsView> Level(int level, std::span<Drafting* const> draftings) override;

 private:
  Model& model_;
  const int layers_;
  const int max_tokens_;
};

// The rows of the last level's nodes: the last tokens of the sequence.
SequenceRows RowsOfLevel(const Drafting& drafting);

}  // namespace outrider
