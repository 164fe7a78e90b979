// EAGLE (Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", arXiv
// 2401.15077): a decoder layer continues the target's hidden states. The row of token x_s is fc [embedding of
// x_s, f_(s-1)], where f_(s-1) is the target's state of the token before, or, beyond the committed tokens,
// what the layer gave for it. The target's head on its output f_s gives the tokens after x_s.
//
// The row is at position s, and its keys and values are in slot s: they depend on the tokens up to x_s alone,
// as the target's do. There is no row for the first token. Position and slot are shifted by one against the
// paper, which a rotary embedding does not see.
#pragma once

#include <memory>
#include <vector>

#include "common/engine/matrix.h"
#include "common/engine/memory.h"
#include "common/engine/model.h"
#include "common/engine/proposers/draft_head.h"
#include "common/engine/proposers/proposer.h"

namespace outrider {

struct EagleParts {
  Model& target;                 // outlives it
  std::unique_ptr<Model> layer;  // without norms at its ends; its pool has the target's blocks
  DraftHead head;
  std::unique_ptr<Matrix> fuse;  // [hidden, 2 hidden]
  std::vector<float> fuse_bias;  // [hidden]; empty: none
  Buffer states;                 // float32 [slots, hidden], the target's
  int hidden_size = 0;
  int block_size = 0;
  int max_rows = 0;  // of a batch
  int max_tokens = 0;
};

class Eagle final : public Proposer {
 public:
  explicit Eagle(EagleParts parts) : parts_(std::move(parts)) {}

  ProposerKind kind() const override { return ProposerKind::kEagle; }
  int max_tokens() const override { return parts_.max_tokens; }
  int SlotsFor(int nodes, int /*depth*/) const override { return 1 + nodes; }
  int HiddenRows(int rows, int /*logit_rows*/) const override { return rows; }
  void OnHidden(const SequenceState& sequence, int first_slot, const HiddenView& hidden) override;
  absl::StatusOr<LogitsView> Level(int level, std::span<Drafting* const> draftings) override;
  void CopyBlock(BlockId from, BlockId to) override;
  void MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) override;

 private:
  // The target's state of the token in a slot.
  float* StateOf(absl::Span<const BlockId> blocks, int slot) const;
  // The tokens from the first on that has no row yet.
  SequenceRows MissingRows(const Drafting& drafting) const;
  // Computes these rows but for the last one.
  absl::Status CatchUp(Drafting& drafting);
  // Adds the input of a token's row: `before` is the state of the token before it.
  void AddInput(TokenId token, const float* before);
  void ClearInputs() {
    tokens_.clear();
    states_.clear();
  }
  // Fuses the inputs, which become the embeddings of the batch's rows, and runs the layer.
  absl::StatusOr<HiddenView> Run(std::vector<SequenceRows>& batch);

  EagleParts parts_;
  std::vector<TokenId> tokens_;  // of the batch in the making, and the states before them, [rows, hidden]
  std::vector<float> states_;
  std::vector<float> embedded_;  // [rows, hidden]
  std::vector<float> inputs_;    // [rows, 2 hidden]
  std::vector<float> fused_;     // [rows, hidden]
  std::vector<float> outputs_;
};

}  // namespace outrider
