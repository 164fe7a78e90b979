// The q of a drafted token, and the target's operations on q and a row: the overlap, the residual, and draws
// from them.
#pragma once

#include <cstdint>

#include "common/spec/shape_in_order.h"
#include "common/spec/team/exact_math.h"
#include "common/spec/team/row_sums.h"
#include "common/spec/team/team.h"
#include "common/spec/types.h"

namespace outrider::team {

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

// The distribution q of a drafted token as a list of entries, one for each token x where q(x) may be
// positive. It refers to memory that it does not own. A point mass has one entry of weight 1.
struct SparseQ {
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

// A row of the target after the controls.
struct TargetRow {
  const float* weights;
  int n;
  ShapedRow shaped;
  OUTRIDER_HD double operator()(int token) const {
    if (shaped.point_mass >= 0) return token == shaped.point_mass ? 1.0 : 0.0;
    return Times(static_cast<double>(weights[token]), 1.0 / shaped.total);
  }
};

// max(p - q, 0) as a source of row_sums.h. Its values are computed on demand.
struct ResidualRow {
  TargetRow p;  // not a point mass
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

// norm(max(p - q, 0)), the residual of a target's row. If nothing is left, which rounding can cause, tokens
// are drawn from p. Its functions are collective.
template <class Team>
class RowRest {
 public:
  OUTRIDER_HD RowRest(Team& team, const TargetRow& p, const SparseQ& q)
      : team_(team), residual_{p, q, 1.0 / p.shaped.total} {
    const int point_mass = p.shaped.point_mass;
    mass_ = point_mass >= 0 ? 1.0 - q(point_mass) : SumRow(team, residual_, p.n);
  }

  OUTRIDER_HD bool empty() const { return !(mass_ > 0); }
  // Draws by inverse CDF over ascending ids, u in [0, 1). Not for a p that is a point mass.
  OUTRIDER_HD int Sample(double u) const {
    const TargetRow& p = residual_.p;
    if (empty()) return SampleIndex(team_, FloatRow{p.weights}, p.n, p.shaped.total, u);
    return SampleIndex(team_, residual_, p.n, mass_, u);
  }

 private:
  Team& team_;
  ResidualRow residual_;
  double mass_;
};

}  // namespace outrider::team
