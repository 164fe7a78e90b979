// Proposers that are the target itself, or heads on its hidden states.
#pragma once

#include <memory>
#include <vector>

#include "common/engine/model.h"
#include "common/engine/proposers/proposer.h"

namespace outrider {

struct ResidualHead {
  struct Layer {
    std::unique_ptr<Matrix> in;  // [inner, hidden]
    std::vector<float> in_bias;
    std::unique_ptr<Matrix> out;  // [hidden, inner]; null: none, and inner is hidden
    std::vector<float> out_bias;
  };
  std::vector<Layer> layers;
  std::unique_ptr<Matrix> logits;  // [vocab, hidden]; null: the target's
};

// Heads on the hidden state that the verdict's token was drawn from. Head i proposes the token i + 1
// positions after that one, whatever the tokens between are. All nodes of a level have the same row.
//
// Medusa (Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding
// Heads", arXiv 2401.10774): h + silu(W h + b), once or several times, and then the target's head or one of
// its own. Blockwise parallel decoding (Stern et al. 2018, arXiv 1811.03115): h + W2 relu(W1 h + b1) + b2,
// and then the target's head.
class ResidualHeads final : public Proposer {
 public:
  // `kind` is kMedusa (activation SiLU) or kBlockwise (ReLU). The model must outlive this.
  ResidualHeads(ProposerKind kind, Model& model, int hidden_size, int vocab_size,
                std::vector<ResidualHead> heads)
      : kind_(kind), model_(model), hidden_size_(hidden_size), vocab_(vocab_size), heads_(std::move(heads)) {}

  ProposerKind kind() const override { return kind_; }
  int max_tokens() const override { return static_cast<int>(heads_.size()); }
  int SlotsFor(int /*nodes*/, int /*depth*/) const override { return 0; }
  int HiddenRows(int /*rows*/, int logit_rows) const override { return logit_rows; }
  absl::StatusOr<LogitsView> LogitsOfLevel(int level, std::span<Drafting* const> draftings) override;

 private:
  // The hidden states of one head for all draftings, [draftings, hidden].
  absl::Status Apply(const ResidualHead& head, std::span<Drafting* const> draftings);

  const ProposerKind kind_;
  Model& model_;
  const int hidden_size_;
  const int vocab_;
  const std::vector<ResidualHead> heads_;
  std::vector<float> states_, inner_, added_;
  std::vector<float> logits_;
};

// Self-speculative decoding (Elhoushi et al. 2024, "LayerSkip: Enabling Early Exit Inference and
// Self-Speculative Decoding", arXiv 2404.16710): the target's first layers, its final norm and its head are
// the draft. They share the target's cache. A draft writes after the computed tokens there, and its entries
// are dropped with the drafted tokens: the verification computes their rows in all layers.
class LayerSkip final : public Proposer {
 public:
  // The model must outlive this and have more than `layers` layers.
  LayerSkip(Model& model, int layers) : model_(model), layers_(layers) {}

  ProposerKind kind() const override { return ProposerKind::kLayerSkip; }
  int SlotsFor(int nodes, int /*depth*/) const override { return 1 + nodes; }
  absl::StatusOr<LogitsView> LogitsOfLevel(int level, std::span<Drafting* const> draftings) override;

 private:
  Model& model_;
  const int layers_;
};

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
  absl::StatusOr<LogitsView> LogitsOfLevel(int level, std::span<Drafting* const> draftings) override;

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
