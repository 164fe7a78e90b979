// EAGLE (Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", arXiv
// 2401.15077): a decoder layer continues the target's hidden states. The row of token x_s is fc [embedding of
// x_s, f_(s-1)], where f_(s-1) is the target's state of the token before or, beyond the committed tokens, the
// layer's output for it. The target's head on the output f_s gives the token after x_s.
//
// EAGLE-3 (Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
// Training-Time Test", arXiv 2503.01840) changes f and the layer: f_(s-1) is fc [the target's residual
// streams of the token before, after some of its layers] or, as above, the layer's output for it. The row of
// x_s is f_(s-1) itself, while its attention reads [norm(embedding of x_s), norm(f_(s-1))]. A norm precedes
// the head.
//
// The row is at position s, and its keys and values are in slot s: they depend on the tokens up to x_s alone,
// as the target's do. There is no row for the first token. Position and slot are shifted by one from the
// paper's, which does not change a rotary embedding's result.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/batch.h"
#include "common/engine/memory.h"
#include "common/engine/model.h"
#include "common/engine/proposers/proposer.h"
#include "common/engine/text_tokens.h"
#include "common/spec/types.h"

namespace outrider {

// Turns a proposer's states into logits, with the target's head or one of its own. Not thread-safe.
class DraftHead {
 public:
  // A head of its own, [tokens, hidden], for the ascending `tokens` of a vocabulary. Other tokens get logits
  // so low that their q is 0 (SpreadLogits), as long as a request's masks leave one of `tokens`. Proposals
  // are sampled from that q, so verification stays exact.
  struct Own {
    std::unique_ptr<Matrix> matrix;
    std::vector<TokenId> tokens;                   // empty: all
    int vocab = 0;                                 // the target's
    std::optional<double> softcap = std::nullopt;  // DecoderConfig::final_softcap
    // Of the text's tokens, those that `tokens` lacks. Null: they cannot be proposed.
    std::unique_ptr<TextTokens> text = nullptr;
  };

  // Uses the target's head; the target must outlive this.
  explicit DraftHead(Model& target) : target_(&target) {}
  explicit DraftHead(Own own) : own_(std::move(own)) {}

  // The tokens of the text that can be proposed though the matrix lacks them.
  std::vector<TokenId> OthersIn(absl::Span<const TokenId> text) {
    return own_.text == nullptr ? std::vector<TokenId>() : own_.text->OthersIn(text);
  }

  // Logits of states [rows, hidden], valid until the next call. `others`: for each row, such tokens. An error
  // means that the device failed.
  absl::StatusOr<LogitsView> Project(absl::Span<const float> states,
                                     std::span<const absl::Span<const TokenId>> others);

 private:
  Model* target_ = nullptr;  // null: `own_`
  Own own_;
  std::vector<float> few_, all_;
};

// The parts that only EAGLE-3 has. The norms are weights of RMS norms, [hidden].
struct Eagle3Parts {
  std::vector<int> taps;  // after how many layers the target's residual streams are fused
  std::vector<float> embedding_norm, state_norm, head_norm;
  float epsilon = 0;
  bool norm_before_residual = false;  // the row of x_s is norm(f_(s-1)), as in speculators
};

struct EagleParts {
  Model& target;                 // must outlive the proposer
  std::unique_ptr<Model> layer;  // without outer norms; its pool has as many blocks as the target's
  DraftHead head;
  std::unique_ptr<Matrix> fuse;  // fc: [hidden, 2 hidden]; of EAGLE-3 [hidden, taps * hidden]
  std::vector<float> fuse_bias;  // [hidden]; empty: none
  Buffer states;                 // float32 [slots, hidden], the target's f
  int hidden_size = 0;
  int block_size = 0;
  int max_rows = 0;  // of a batch
  std::optional<Eagle3Parts> eagle3 = std::nullopt;
};

class Eagle final : public Proposer {
 public:
  explicit Eagle(EagleParts parts) : parts_(std::move(parts)) {}

  ProposerKind kind() const override { return ProposerKind::kEagle; }
  int SlotsFor(int nodes, int /*depth*/) const override { return 1 + nodes; }
  int HiddenRows(int rows, int /*logit_rows*/) const override { return rows; }
  absl::Span<const int> taps() const override {
    return parts_.eagle3 ? absl::MakeConstSpan(parts_.eagle3->taps) : absl::Span<const int>();
  }
  void OnHidden(std::span<const HiddenOfSequence> hidden) override;
  absl::StatusOr<LogitsView> LogitsOfLevel(int level, std::span<Drafting* const> draftings) override;
  void CopyBlock(BlockId from, BlockId to) override;
  void MoveSlots(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) override;

 private:
  // The target's f of the token in a slot.
  float* StateOf(absl::Span<const BlockId> blocks, int slot) const;
  // The sequence's tokens, from the first one that has no row of the layer yet.
  SequenceRows MissingRows(const Drafting& drafting) const;
  // Computes the missing rows except the last one.
  absl::Status CatchUp(Drafting& drafting);
  // Adds the input of a token's row: `before` is the state of the token before it.
  void AddInput(TokenId token, const float* before) {
    tokens_.push_back(token);
    states_.insert(states_.end(), before, before + parts_.hidden_size);
  }
  // Runs the layer with the inputs as embeddings of the batch's rows.
  absl::StatusOr<HiddenView> Run(std::vector<SequenceRows>& batch);
  // Sets rows_ to fc of `rows`, which have as many columns as fc.
  absl::Status Fuse(absl::Span<const float> rows);
  // Computes rows_ from embedded_ and states_.
  absl::Status MakeRows();
  void MakeRowsOfEagle3(const Eagle3Parts& eagle3);

  EagleParts parts_;
  std::vector<TokenId> tokens_;  // the next batch's; states_ has the state before each, [rows, hidden]
  std::vector<float> states_;
  std::vector<float> embedded_;                    // [rows, hidden]
  std::vector<float> inputs_;                      // inputs of fc: [rows, columns of fc]
  std::vector<float> rows_;                        // [rows, columns of the layer's embeddings]
  std::vector<float> outputs_;                     // inputs of the head
  std::vector<absl::Span<const TokenId>> others_;  // for each of these, DraftHead::OthersIn its text
  absl::Status fused_;  // of fusing the target's streams; after an error nothing can be proposed
};

}  // namespace outrider
