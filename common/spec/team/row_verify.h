// What the target does with a row and the q of a drafted token: overlap, residual, and the draws from them.
#pragma once

#include <cstdint>

#include "common/spec/random.h"
#include "common/spec/team/exact_math.h"
#include "common/spec/team/row_draw.h"
#include "common/spec/team/row_sums.h"
#include "common/spec/team/row_types.h"
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

// The first of the ascending ids that is not below `token`.
OUTRIDER_HD inline int LowerBound(const int32_t* ids, int count, int token) {
  int begin = 0;
  while (count > 0) {
    const int half = count / 2;
    if (ids[begin + half] < token) {
      begin += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return begin;
}

// The distribution of a drafted token, which is not absent. A point mass has one entry of weight 1.
struct DraftQ {
  const int32_t* ids;
  const float* weights;  // null for a point mass
  int count;
  double inverse_total;

  OUTRIDER_HD double Entry(int i) const {
    return weights == nullptr ? 1.0 : Times(static_cast<double>(weights[i]), inverse_total);
  }
  OUTRIDER_HD double operator()(int token) const {
    const int i = LowerBound(ids, count, token);
    return i < count && ids[i] == token ? Entry(i) : 0.0;
  }
};

// max(p - q, 0) as a source of row_sums.h: its values are computed where they are wanted.
struct ResidualRow {
  TargetRow p;  // no point mass
  DraftQ q;
  double inverse_total;

  struct Block {
    const float* weights;
    double inverse_total;
    DraftQ q;  // the entries that lie in the block
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

// Overlap of common/spec/distribution.h, at most 1: the probability that the token rule accepts.
template <class Team>
OUTRIDER_HD double Overlap(Team& team, const TargetRow& p, const DraftQ& q) {
  constexpr int kTerms = kTileBlocks * kLaneStride;  // that are held at a time
  double* const terms = team.scratch().lanes;
  double sum = 0;  // thread 0's
  for (int begin = 0; begin < q.count; begin += kTerms) {
    const int end = Smaller(q.count, begin + kTerms);
    for (int i = begin + team.rank(); i < end; i += team.size()) {
      const double a = p(q.ids[i]);
      const double b = q.Entry(i);
      terms[i - begin] = b < a ? b : a;
    }
    team.Sync();
    for (int i = begin; team.rank() == 0 && i < end; ++i) sum += terms[i - begin];
    team.Sync();
  }
  sum = Broadcast(team, sum);
  return sum < 1 ? sum : 1.0;
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
OUTRIDER_HD int DrawCorrection(Team& team, const TargetRow& p, const DraftQ& q, uint64_t position,
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
