#include "common/spec/residual.h"

#include <algorithm>
#include <span>
#include <vector>

#include "common/spec/team/row_verify.h"
#include "common/spec/team/team_of_one.h"
#include "common/spec/weights.h"

namespace outrider {

// `mass_` stays 1 whatever the scale: scaling p removes probability and does not spread it over other tokens.
Residual::Residual(const WeightRow& p, double scale) : p_(p), point_weight_(scale) {
  if (p.point_mass >= 0) return;
  weights_ = std::make_unique_for_overwrite<double[]>(p.vocab());
  ScaleWeights(p.weights, scale * (1.0 / p.total), {weights_.get(), p.vocab()});
}

void Residual::Subtract(const Distribution& q) {
  if (empty()) return;
  if (!weights_) {
    point_weight_ = std::max(point_weight_ - mass_ * q(p_.point_mass), 0.0);
    mass_ = point_weight_;
    return;
  }
  const std::span<double> weights(weights_.get(), p_.vocab());
  if (q.form == Distribution::Form::kDense) {
    SubtractWeights(q.weights, mass_ * (1.0 / q.total), weights);
  } else {
    const team::SparseQ entries = EntriesOf(q);
    for (int i = 0; i < entries.count; ++i) {
      double& weight = weights[entries.ids[i]];
      weight = std::max(weight - mass_ * entries.Entry(i), 0.0);
    }
  }
  mass_ = SumWeights(weights);
}

double Residual::Overlap(const Distribution& q) const {
  if (empty()) return 0;
  if (!weights_) return std::min(q(p_.point_mass), 1.0);
  if (q.form != Distribution::Form::kDense) {
    team::TeamOfOne team;
    return team::Overlap(team, *this, EntriesOf(q));
  }
  std::vector<double> shared(p_.vocab());
  for (size_t x = 0; x < shared.size(); ++x) {
    const TokenId token = static_cast<TokenId>(x);
    shared[x] = std::min((*this)(token), q(token));
  }
  return SumWeights(shared);
}

TokenId Residual::Sample(double u) const {
  if (empty() || !weights_) return outrider::Sample(p_, u);
  return static_cast<TokenId>(SampleIndex(std::span<const double>(weights_.get(), p_.vocab()), mass_, u));
}

}  // namespace outrider
