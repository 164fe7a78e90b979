// Heads on the hidden state that the verdict's token was drawn from. Head i proposes the token i + 1
// positions after that one, whatever the tokens between are. All nodes of a level have the same row.
//
// Medusa (Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding
// Heads", arXiv 2401.10774): h + silu(W h + b), once or several times, and then the target's head or one of
// its own. Blockwise parallel decoding (Stern et al. 2018, arXiv 1811.03115): h + W2 relu(W1 h + b1) + b2,
// and then the target's head.
#pragma once

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
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
  absl::StatusOr<LogitsView> Level(int level, std::span<Drafting* const> draftings) override;

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

// Repeats each drafting's row of `rows` for every node of its last level. The result is in `storage`.
LogitsView RowsForNodes(const LogitsView& rows, std::span<Drafting* const> draftings,
                        std::vector<float>& storage);

}  // namespace outrider
