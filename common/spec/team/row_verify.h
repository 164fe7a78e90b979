// What the target does with a row and the q of a drafted token: overlap, residual, and the draws from them.
#pragma once

#include <cstdint>

#include "common/spec/random.h"
#include "common/spec/team/exact_math.h"
#include "common/spec/team/row_draw.h"
#include "common/spec/team/row_sums.h"
#include "common/spec/team/row_types.h"
#include "common/spec/team/sparse_q.h"
#include "common/spec/team/team.h"

namespace outrider::team {

// A target's row.
struct TargetRow {
  const float* weights;
  int n;
  ShapedRow shaped;
  OUTRIDER_HD double operator()(int token) const {
    if (shaped.point_mass >= 0) return token == shaped.point_mass ? 1.0 : 0.0;
    return Times(static_cast<double>(weights[token]), 1.0 / shaped.total);
  }
};

// max(p - q, 0) as a source of row_sums.h: its values are computed where they are wanted.
struct ResidualRow {
  TargetRow p;  // no point mass
  SparseQ q;
  double inverse_total;

  struct Block {
    const float* weights;
    double inverse_total;
    SparseQ q;  // the entries that lie in the block
    OUTRIDER_HD float Load(int i) const { return weights[i]; }
    OUTRIDER_HD double Value(int i, float weight) const {
      const double target = Times(inverse_total, static_cast<double>(weight));
      for (int entry = 0; entry < q.count; ++entry) {
        if (q.ids[entry] != i) continue;
        const double rest = target - q.Entry(entry);
        return rest > 0 ? rest : 0.0;
      }
      return target;
    }
  };
  OUTRIDER_HD Block Range(int begin, int end) const {
    const int first = LowerBound(q.ids, q.count, begin);
    const int count = LowerBound(q.ids + first, q.count - first, end);
    const float* const entries = q.weights == nullptr ? nullptr : q.weights + first;
    return {p.weights, inverse_total, {q.ids + first, entries, count, q.inverse_total}};
  }
};

// sum over x of min(p(x), q(x)). With p the target's distribution it is the probability that the token rule
// accepts a token drawn from q (Leviathan et al., arXiv 2211.17192, Theorem 3.5).
template <class Team, class P>
OUTRIDER_HD double Overlap(Team& team, const P& p, const SparseQ& q) {
  return AddInOrder(team, q.count, [&](int i) {
    const double a = p(q.ids[i]);
    const double b = q.Entry(i);
    return b < a ? b : a;
  });
}

// The random numbers of a round.
struct RoundNoise {
  RandomKey key;
  uint64_t round_start;
  OUTRIDER_HD double operator()(Purpose purpose, uint64_t position) const {
    return Uniform(key, position, purpose, 0, round_start);
  }
};

// The token that replaces a rejected one.
template <class Team>
OUTRIDER_HD int DrawCorrection(Team& team, const TargetRow& p, const SparseQ& q, uint64_t position,
                               const RoundNoise& noise, bool* empty_residual) {
  if (p.shaped.point_mass >= 0) {
    *empty_residual = !(1.0 - q(p.shaped.point_mass) > 0);
    return p.shaped.point_mass;
  }
  const ResidualRow residual{p, q, 1.0 / p.shaped.total};
  const double mass = SumRow(team, residual, p.n);
  *empty_residual = !(mass > 0);
  const double u = noise(Purpose::kResidual, position);
  if (*empty_residual) return SampleIndex(team, FloatRow{p.weights}, p.n, p.shaped.total, u);
  return SampleIndex(team, residual, p.n, mass, u);
}

template <class Team>
OUTRIDER_HD int DrawBonus(Team& team, const TargetRow& p, uint64_t position, const RoundNoise& noise) {
  if (p.shaped.point_mass >= 0) return p.shaped.point_mass;
  return SampleIndex(team, FloatRow{p.weights}, p.n, p.shaped.total, noise(Purpose::kBonus, position));
}

}  // namespace outrider::team
