// Parallel speculative sampling (Monea et al. 2023, "PaSS: Parallel Speculative Sampling", arXiv 2311.13581):
// rows with trained embeddings follow the verdict's token in one more forward pass of the target, and the
// row of each stands for a token that is not known yet. The first drafted token has the target's own
// distribution, since the verdict's token is computed in that pass too.
//
// A round takes two passes. One pass would need look-ahead rows under every node of the proposal that is
// being verified: (m + 1) m more.
#pragma once

#include <vector>

#include "common/engine/model.h"
#include "common/engine/proposers/proposer.h"

namespace outrider {

class LookAhead final : public Proposer {
 public:
  // `embeddings`: [m, hidden]. The model outlives it.
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
