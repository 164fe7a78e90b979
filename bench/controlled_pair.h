// A target and a draft model of any shape whose acceptance rate is a chosen number.
//
// Attention and MLP of a layer add to the residual stream through their output matrices (o_proj, down_proj),
// which are zero here. Everything is computed at its full cost and adds nothing, so after all layers a token
// x still is its embedding E[x]. The head is the embedding again, so the logit of y after x is <E[y],
// norm(E[x])>.
//
// Some tokens belong to worlds. Each world w has its own direction, the unit vector e_w. E[x] is 8 e_w for
// the tokens of w that the model may emit, 4 e_w for the other tokens of w, which the other model may emit,
// and 0 for tokens of no world. RMS norm maps the first two to the same sqrt(hidden) e_w. After any token of
// w, the logits are therefore 8 sqrt(hidden) for the tokens that the model may emit, equal to the last bit in
// every dtype, and 4 sqrt(hidden) or 0 for all others, which is so much less that their probability is 0 in
// float32. The model draws uniformly from its own tokens of the last token's world.
//
// Of its n = 100 tokens in a world, each model shares m = 100 alpha with the other one, so
//
//   p = alpha A + (1 - alpha) B,  q = alpha A + (1 - alpha) C
//
// with uniform distributions A, B and C of disjoint support. Then sum over x of min(p(x), q(x)) = alpha
// exactly, at every position and after every prefix: the assumption of Theorem 3.8 of Leviathan et al. (arXiv
// 2211.17192). The prompt selects the world, so one pair serves several alphas. The law holds at temperature
// 1 (greedily, both models always take the first shared token) if the draft sends at least 100 tokens of q.
#pragma once

#include <cmath>
#include <filesystem>
#include <vector>

#include "bench/generated_model.h"
#include "common/spec/types.h"

namespace outrider {

enum class PairRole { kTarget, kDraft };

class ControlledPair {
 public:
  static constexpr int kTokens = 100;  // tokens of a world that a model may emit

  // One world per alpha. The alphas are in [0, 1] and rounded to hundredths. A model needs at least as many
  // dimensions as worlds, and a vocabulary of at least vocab().
  explicit ControlledPair(const std::vector<double>& alphas) {
    for (double alpha : alphas) shared_.push_back(static_cast<int>(std::lround(alpha * kTokens)));
  }

  // The tokens of the worlds have ids [0, vocab()).
  int vocab() const { return static_cast<int>(shared_.size()) * kStride; }

  // Whether the model of this role may emit `token`. A world lists the shared tokens, then the target's own,
  // then the draft's own.
  bool Emits(PairRole role, TokenId token) const {
    const int shared = shared_[static_cast<size_t>(token / kStride)], index = token % kStride;
    if (index < shared) return true;
    return role == PairRole::kTarget ? index < kTokens : index >= kTokens && index < 2 * kTokens - shared;
  }

  // A prompt of a world: its first token, which is a shared one if there are any, `length` times.
  static std::vector<TokenId> Prompt(int world, int length) {
    return std::vector<TokenId>(static_cast<size_t>(length), world * kStride);
  }

  // The weights of one of the models, for WriteModel.
  FillRow Weights(PairRole role) const {
    return [pair = *this, role, random = RandomRows()](const std::string& tensor, int row,
                                                       std::span<uint16_t> values) mutable {
      if (tensor == "model.embed_tokens.weight") {
        if (row >= pair.vocab()) return;
        values[static_cast<size_t>(row / kStride)] = BFloat16(pair.Emits(role, row) ? 8 : 4);
      } else if (!tensor.ends_with("o_proj.weight") && !tensor.ends_with("down_proj.weight")) {
        random(tensor, row, values);
      }
    };
  }

 private:
  static constexpr int kStride = 2 * kTokens;

  std::vector<int> shared_;  // number of shared tokens, by world
};

}  // namespace outrider
