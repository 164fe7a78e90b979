// The target's verdict on a proposal: the path of accepted nodes, and one more token.
#pragma once

#include <cstddef>
#include <numeric>
#include <vector>

#include "common/spec/types.h"

namespace outrider {

struct Verdict {
  enum class Kind {
    kPlain,      // there was no proposal
    kCorrected,  // `token` replaces what was rejected
    kBonus,      // `token` follows a leaf of the proposal
  };
  // Indices of the accepted nodes, from the root down: each is a child of the one before it. For a chain 0,
  // 1, 2, ...
  std::vector<int> path;
  TokenId token = 0;  // follows the path; the target has not been fed it yet
  Kind kind = Kind::kPlain;
  bool empty_residual = false;  // the residual had no mass, so `token` was drawn from p

  // Natural logarithm of p at each emitted token: those of the path, then `token`. At temperature 0 with
  // lenience below 1, p is the softmax of the logits.
  std::vector<double> log_probabilities;

  // Canaries. Token rule with lenience 1: the sums, over the judged nodes, of b = sum_x min(r, q), which is
  // the chance that the node is accepted, and of its variance b (1 - b). r is p, or the residual that
  // rejected siblings left of it.
  double expected_accepted = 0;
  double expected_variance = 0;
  int judged = 0;  // nodes that the walk tested: the path and the rejected nodes
  // Sums over the emitted tokens of -log p(token), and of the entropy of p. Their expectations agree.
  double surprisal = 0;
  double entropy = 0;
};

// The path of the first `length` nodes of a chain.
inline std::vector<int> ChainPath(size_t length) {
  std::vector<int> path(length);
  std::iota(path.begin(), path.end(), 0);
  return path;
}

}  // namespace outrider
