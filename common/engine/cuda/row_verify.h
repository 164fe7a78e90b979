// The verdict over a draft of one sequence: Verify of common/spec for the token rule at lenience 1 and the
// coupled rule, with the same tokens and canaries from the same random numbers. Logarithms are those of the
// machine's library: log-probabilities, and the sums of them and of entropies, may differ in the last bits
// from those of another machine. No decision looks at them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/engine/cuda/decide_types.h"
#include "common/engine/cuda/exact_math.h"
#include "common/engine/cuda/row_draw.h"
#include "common/engine/cuda/row_sums.h"
#include "common/engine/cuda/team.h"

namespace outrider::cuda {

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

OUTRIDER_HD inline DraftQ QOf(const DraftedToken& drafted, const int32_t* q_ids, const float* q_weights) {
  if (drafted.form == QForm::kSparse) {
    return {q_ids + drafted.first_q, q_weights + drafted.first_q, drafted.count, 1.0 / drafted.total};
  }
  return {&drafted.token, nullptr, 1, 1};
}

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
  double* const terms = team.scratch().lanes;
  static_assert(kMaxTopN <= kTileBlocks * kLaneStride, "the terms of a sparse q have to fit");
  for (int i = team.rank(); i < q.count; i += team.size()) {
    const double a = p(q.ids[i]);
    const double b = q.Entry(i);
    terms[i] = b < a ? b : a;
  }
  team.Sync();
  double sum = 0;
  if (team.rank() == 0) {
    for (int i = 0; i < q.count; ++i) sum += terms[i];
  }
  sum = Broadcast(team, sum);
  return sum < 1 ? sum : 1.0;
}

// The random numbers of a round.
struct RoundNoise {
  uint64_t seed, sample_index, round_start;
  OUTRIDER_HD double operator()(Purpose purpose, uint64_t position) const {
    return Uniform(seed, sample_index, position, purpose, round_start);
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

// Strict, so that a token with p = 0 is never accepted.
OUTRIDER_HD inline bool Accepts(const TargetRow& p, const DraftQ& q, int token, uint64_t position,
                                const RoundNoise& noise) {
  if (p.shaped.point_mass >= 0) return token == p.shaped.point_mass;
  return Times(noise(Purpose::kAccept, position), q(token)) < p(token);
}

// Judges one sequence. `weights` and `shaped` are those of all rows ([rows, n] and [rows]); `races` has,
// under the coupled rule, what RaceRow gives for this sequence's rows that are finite and no point mass. Rows
// after the first rejection are not looked at. `*output` is written by one thread.
template <class Team>
OUTRIDER_HD void VerifySequence(Team& team, const float* weights, int n, const ShapedRow* shaped,
                                const int32_t* races, const VerifyInput& input, const DraftedToken* drafted,
                                const int32_t* q_ids, const float* q_weights, VerifyOutput* output) {
  const RoundNoise noise{input.seed, input.sample_index, input.round_start};
  double expected_accepted = 0, expected_variance = 0, surprisal = 0, entropy = 0;
  bool empty_residual = false;
  bool goes_on = true;
  int accepted = 0;
  int token = 0;
  while (goes_on) {
    const size_t index = static_cast<size_t>(input.first_row) + accepted;
    const TargetRow row{weights + index * static_cast<size_t>(n), n, shaped[index]};
    if (row.shaped.finite == 0) {
      if (team.rank() == 0) output->finite = 0;
      return;
    }
    const uint64_t position = input.round_start + static_cast<uint64_t>(accepted);
    const bool last = accepted == input.drafted;
    const DraftedToken* const guess = last ? nullptr : drafted + input.first_drafted + accepted;
    if (input.coupled != 0) {
      token = row.shaped.point_mass >= 0 ? row.shaped.point_mass : races[index];
      goes_on = !last && token == guess->token;
    } else if (last) {
      token = DrawBonus(team, row, position, noise);
      goes_on = false;
    } else {
      const DraftQ q = QOf(*guess, q_ids, q_weights);
      const double b = Overlap(team, row, q);
      expected_accepted += b;
      expected_variance += Times(b, 1 - b);
      goes_on = Accepts(row, q, guess->token, position, noise);
      token = goes_on ? guess->token : DrawCorrection(team, row, q, position, noise, &empty_residual);
    }
    const double log_probability = ::log(row(token));
    surprisal -= log_probability;
    entropy += row.shaped.entropy;
    if (team.rank() == 0) output->log_probabilities[accepted] = log_probability;
    if (goes_on) ++accepted;
  }
  if (team.rank() == 0) {
    output->expected_accepted = expected_accepted;
    output->expected_variance = expected_variance;
    output->surprisal = surprisal;
    output->entropy = entropy;
    output->accepted = accepted;
    output->token = token;
    output->empty_residual = empty_residual ? 1 : 0;
    output->finite = 1;
  }
}

}  // namespace outrider::cuda
