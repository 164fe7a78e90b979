// Proposers that are the target itself: its first layers, and rows that look ahead.
#pragma once

#include <vector>

#include "common/engine/model.h"
#include "common/engine/proposers/proposer.h"

namespace outrider {

// Self-speculative decoding (Elhoushi et al. 2024, "LayerSkip: Enabling Early Exit Inference and
// Self-Speculative Decoding", arXiv 2404.16710): the target's first layers, its final norm and its head are
// the draft. They share the target's cache. A draft writes after the computed tokens there, and its entries
// are dropped with the drafted tokens: the verification computes their rows in all layers.
class LayerSkip final : public Proposer {
 public:
  // The model must outlive this and have more than `layers` layers.
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

// Parallel speculative sampling (Monea et al. 2023, "PaSS: Parallel Speculative Sampling", arXiv 2311.13581):
// rows with trained embeddings follow the verdict's token in one more forward pass of the target, and the
// row of each stands for a token that is not known yet. The first drafted token has the target's own
// distribution, since the verdict's token is computed in that pass too.
//
// A round takes two passes. One pass would need look-ahead rows under every node of the proposal that is
// being verified: (m + 1) m more.
class LookAhead final : public Proposer {
 public:
  // `embeddings`: [m, hidden]. The model must outlive this.
  LookAhead(Model& model, int hidden_size, std::vector<float> embeddings)
      : model_(model), hidden_size_(hidden_size), embeddings_(std::move(embeddings)) {}

  ProposerKind kind() const override { return ProposerKind::kPass; }
  int max_tokens() const override { return 1 + static_cast<int>(embeddings_.size()) / hidden_size_; }
  int SlotsFor(int /*nodes*/, int depth) const override { return depth; }
  absl::StatusOr<LogitsView> Level(int level, std::span<Drafting* const> draftings) override;

 private:
  // Computes the logits of all levels, and keeps them as the draftings' states.
  absl::Status Compute(std::span<Drafting* const> draftings);

  Model& model_;
  const int hidden_size_;
  const std::vector<float> embeddings_;
  int vocab_ = 0;
  std::vector<float> logits_;
};

}  // namespace outrider
