// The residual of a target distribution after the drafts' distributions are subtracted.
#pragma once

#include <memory>

#include "common/spec/distribution.h"

namespace outrider {

// r = p at first; Subtract(q) makes it norm(max(r - q, 0)) (Leviathan et al. 2211.17192, section 2.3; once
// for each of several proposals in Miao et al. 2305.09781, Algorithm 2). With scale < 1 the first step is
// norm(max(scale * p - q, 0)) (Sun et al. 2403.10444, equation 4). Owns [vocab] doubles unless p is a point
// mass; p's row must outlive it.
//
// If nothing is left, which rounding can cause, empty() is true, every probability is 0, and Sample draws
// from p.
class Residual {
 public:
  explicit Residual(const WeightRow& p, double scale = 1);

  void Subtract(const Distribution& q);

  bool empty() const { return !(mass_ > 0); }
  // The sum over x of the last max(..., 0), before it was normalised.
  double mass() const { return mass_; }
  // Probability of a token.
  double operator()(TokenId token) const {
    if (empty()) return 0;
    if (!weights_) return token == p_.point_mass ? 1 : 0;
    return weights_[token] / mass_;
  }
  // sum over x of min(r(x), q(x)): the probability that a token drawn from q is accepted.
  double Overlap(const Distribution& q) const;
  // Draws by inverse CDF over ascending ids, u in [0, 1).
  TokenId Sample(double u) const;

 private:
  WeightRow p_;
  std::unique_ptr<double[]> weights_;  // [vocab], not normalised; null if p is a point mass
  double point_weight_;                // the only weight if p is a point mass
  double mass_ = 1;                    // sum of the weights; 1 before the first Subtract, whatever the scale
};

}  // namespace outrider
