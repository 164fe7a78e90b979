// Turns a row of logits into the distribution that is sampled: the part of Controls::Apply (common/spec)
// after the penalties and masks. It gives the same bits except at the boundary of top_p (row_select.h says by
// how much).
#pragma once

#include <cmath>
#include <cstdint>

#include "common/spec/shape_in_order.h"
#include "common/spec/team/exact_math.h"
#include "common/spec/team/row_select.h"
#include "common/spec/team/row_sums.h"
#include "common/spec/team/team.h"

namespace outrider::team {

// The number of candidates in which the boundary of top_p is searched first: enough for the rows of models,
// and few enough to be collected.
inline constexpr int kNucleusCandidates = kMaxCandidates / 2;

// Logits that become weights as they are read. Those whose keys are below the cut become 0.
struct ExpRow {
  float* row;
  float max, inverse_temperature;
  uint64_t cut;
  OUTRIDER_HD const ExpRow& Range(int /*begin*/, int /*end*/) const { return *this; }
  OUTRIDER_HD float Load(int i) const { return row[i]; }
  OUTRIDER_HD double Value(int i, float logit) const {
    const bool kept = cut == kNoKey || KeyOf(logit, i) >= cut;
    const float weight = kept ? ExpWeight(logit, max, inverse_temperature) : 0.0f;
    row[i] = weight;
    return weight;
  }
};

// Weights that become 0 as they are read if their keys are below the cut or they are below the bound.
struct CutRow {
  float* row;
  uint64_t cut;
  float bound;
  OUTRIDER_HD const CutRow& Range(int /*begin*/, int /*end*/) const { return *this; }
  OUTRIDER_HD float Load(int i) const { return row[i]; }
  OUTRIDER_HD double Value(int i, float weight) const {
    const bool kept = cut == kNoKey || KeyOf(weight, i) >= cut;
    if (!kept || weight < bound) weight = 0;
    row[i] = weight;
    return weight;
  }
};

struct TimesLogRow {
  const float* weights;
  OUTRIDER_HD const TimesLogRow& Range(int /*begin*/, int /*end*/) const { return *this; }
  OUTRIDER_HD float Load(int i) const { return weights[i]; }
  OUTRIDER_HD double Value(int /*i*/, float weight) const { return TimesLog(weight); }
};

// Entropy in nats of the distribution, -sum p log p. Relative accuracy about 1e-6 (it feeds a canary, not a
// decision).
template <class Team>
OUTRIDER_HD double RowEntropy(Team& team, const float* weights, int n, double total) {
  return ::log(total) - SumRow(team, TimesLogRow{weights}, n) / total;
}

// The key of the largest logit, ties to the lowest id; kNoKey if a logit is NaN or infinite.
template <class Team>
OUTRIDER_HD uint64_t LargestFinite(Team& team, const float* logits, int n) {
  constexpr uint64_t kSpecial = ~uint64_t{0};  // above every key of a finite logit
  uint64_t largest = kNoKey;
  bool special = false;
  const auto load = [&](int i) { return logits[i]; };
  ForEach(team, n, load, [&](int i, float logit) {
    special = special || !Finite(logit);
    const uint64_t key = KeyOf(logit, i);
    if (key > largest) largest = key;
  });
  const uint64_t result = team.Max(special ? kSpecial : largest);
  return result == kSpecial ? kNoKey : result;
}

// The cut that keeps the shortest prefix of the weights whose sum is at least `mass`; kNoKey keeps all.
template <class Team>
OUTRIDER_HD uint64_t CutAtMass(Team& team, const float* weights, int n, double mass) {
  // mass <= total <= kMaxVocab; sums are whole numbers of units, so the target is rounded up.
  const double units = ::ceil(mass * kMassUnits);
  const uint64_t target = units < 1 ? 1 : static_cast<uint64_t>(units);
  const int wanted = Min(kNucleusCandidates, team.size());
  return SelectRow(team, WeightKeys{weights}, n, wanted, MassMeasure{}, target);
}

// The Row of ShapeInOrder, for a team. Removed tokens get weight 0 in the next pass over the row. Collective.
template <class Team>
class TeamRow {
 public:
  OUTRIDER_HD TeamRow(Team& team, float* row, int n, float largest)
      : team_(team), row_(row), n_(n), largest_(largest) {}

  OUTRIDER_HD int size() const { return n_; }
  OUTRIDER_HD void KeepLargest(int k) {
    cut_ = SelectRow(team_, LogitKeys{row_}, n_, k, CountMeasure{}, static_cast<uint64_t>(k));
  }
  OUTRIDER_HD void Exponentiate(float inverse_temperature) {
    total_ = SumRow(team_, ExpRow{row_, largest_, inverse_temperature, cut_}, n_);
    cut_ = kNoKey;
  }
  OUTRIDER_HD void KeepMass(double share) { cut_ = CutAtMass(team_, row_, n_, Times(share, total_)); }
  OUTRIDER_HD void RemoveBelow(float bound) { bound_ = bound; }
  // Removes the tokens that remain to be removed and returns the sum of the weights.
  OUTRIDER_HD double Finish() {
    if (cut_ == kNoKey && bound_ == 0) return total_;
    return SumRow(team_, CutRow{row_, cut_, bound_}, n_);
  }

 private:
  Team& team_;
  float* const row_;
  const int n_;
  const float largest_;
  uint64_t cut_ = kNoKey;
  float bound_ = 0;
  double total_ = 0;
};

// Shapes a row in place; `n` in [1, kMaxVocab]. Computes the entropy only if `entropy`. One thread writes
// `*shaped`.
template <class Team>
OUTRIDER_HD void ShapeRow(Team& team, float* row, int n, const RowControls& controls, bool entropy,
                          ShapedRow* shaped) {
  ShapedRow result{1, 0, -1, 1};
  const uint64_t largest = LargestFinite(team, row, n);
  if (largest == kNoKey) {
    result.finite = 0;
  } else if (controls.greedy != 0) {
    result.point_mass = IdOf(largest);
  } else {
    TeamRow<Team> shaping(team, row, n, ValueOf(largest));
    ShapeInOrder(shaping, controls);
    result.total = shaping.Finish();
    if (entropy) result.entropy = RowEntropy(team, row, n, result.total);
  }
  if (team.rank() == 0) *shaped = result;
}

}  // namespace outrider::team
