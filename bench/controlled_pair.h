// A target and a draft of any shape whose acceptance rate is a chosen number.
//
// What attention and MLP of a layer add to the residual stream passes through their output matrices
// (o_proj, down_proj). Those are zero here: everything is computed, at its full cost, and nothing is added,
// so that after all layers a token x still is its embedding E[x]. The head is the embedding again, and the
// logit of y after x is <E[y], norm(E[x])>.
//
// Some tokens belong to worlds, each with a direction e_w of its own, a unit vector. E[x] is 8 e_w for the
// tokens of world w that the model may emit, 4 e_w for its others, which may be the other model's, and 0 for
// tokens of no world. RMS norm makes sqrt(hidden) e_w of the first two alike. After any token of w the logits
// are therefore 8 sqrt(hidden) for what the model may emit, equal to the last bit in every dtype, 4
// sqrt(hidden) or 0 for the rest: a distance at which float32 has no probability left. The model draws evenly
// from its own tokens of the world that the last token belongs to.
//
// Of its n = 100 tokens in a world, each model shares m = 100 alpha with the other one, so
//
//   p = alpha A + (1 - alpha) B,  q = alpha A + (1 - alpha) C
//
// with uniform distributions A, B and C of which no two overlap, and sum over x of min(p(x), q(x)) = alpha
// exactly, at every position and whatever came before: what Theorem 3.8 of Leviathan et al. (arXiv
// 2211.17192) assumes. The prompt chooses the world, hence one pair serves several alphas. It takes
// temperature 1 (greedily both models always take the first shared token), and a draft that sends 100 tokens
// of q or more.
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
  static constexpr int kTokens = 100;  // that a model may emit in a world

  // alphas in [0, 1], taken to the nearest hundredth; a world for each. A model needs that many dimensions
  // and vocab().
  explicit ControlledPair(const std::vector<double>& alphas) {
    for (double alpha : alphas) shared_.push_back(static_cast<int>(std::lround(alpha * kTokens)));
  }

  // Ids [0, vocab()) are the tokens of the worlds.
  int vocab() const { return static_cast<int>(shared_.size()) * kStride; }

  // In a world come the shared tokens, then those of the target alone, then those of the draft alone.
  bool Emits(PairRole role, TokenId token) const {
    const int shared = shared_[static_cast<size_t>(token / kStride)], index = token % kStride;
    if (index < shared) return true;
    return role == PairRole::kTarget ? index < kTokens : index >= kTokens && index < 2 * kTokens - shared;
  }

  // Tokens of a world, shared ones where there are any.
  static std::vector<TokenId> Prompt(int world, int length) {
    return std::vector<TokenId>(static_cast<size_t>(length), world * kStride);
  }

  // The weights of one of the two, for WriteModel.
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

  std::vector<int> shared_;  // tokens, by world
};

}  // namespace outrider
