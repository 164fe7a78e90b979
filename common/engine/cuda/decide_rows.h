// What draft and target decide on the device, from shaped rows: the draft's proposal for a position and the
// verdict over a chain. Verify of common/spec for the token rule at lenience 1 and the coupled rule, with the
// same tokens and canaries from the same random numbers. Logarithms are those of the machine's library:
// log-probabilities, and the sums of them and of entropies, may differ in the last bits from those of another
// machine. No decision looks at them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/engine/cuda/decide_types.h"
#include "common/spec/accepts.h"
#include "common/spec/team/exact_math.h"
#include "common/spec/team/row_draw.h"
#include "common/spec/team/row_sums.h"
#include "common/spec/team/row_verify.h"
#include "common/spec/team/team.h"

namespace outrider::cuda {

// A draft's choice after a shaped row, as the draft service makes it on the host. q_ids and q_weights have
// room for kMaxTopN entries. `*output` is written by one thread.
template <class Team>
OUTRIDER_HD void ProposeRow(Team& team, const float* weights, int n, const ShapedRow& shaped,
                            const ProposeInput& input, int step, ProposeOutput* output, int32_t* q_ids,
                            float* q_weights) {
  const uint64_t position = input.position + static_cast<uint64_t>(step);
  const bool coupled = input.coupled != 0;
  ProposeOutput result{1, 0, coupled ? QForm::kAbsent : QForm::kPointMass, 0, shaped.finite};
  if (shaped.finite == 0) {
    result.form = QForm::kAbsent;
  } else if (shaped.point_mass >= 0) {
    result.token = shaped.point_mass;
  } else if (coupled) {
    result.token = team::RaceRow(team, weights, n, input.key, position);
  } else {
    result.form = QForm::kSparse;
    result.count = team::TruncateTopN(team, weights, n, input.top_n, q_ids, q_weights);
    const team::FloatRow q{q_weights};
    result.total = team::SumRow(team, q, result.count);
    const double u = Uniform(input.key, position, Purpose::kDraft, 0, input.round_start);
    result.token = q_ids[team::SampleIndex(team, q, result.count, result.total, u)];
  }
  if (team.rank() == 0) *output = result;
}

OUTRIDER_HD inline team::SparseQ QOf(const DraftedToken& drafted, const int32_t* q_ids,
                                    const float* q_weights) {
  if (drafted.form == QForm::kSparse) {
    return {q_ids + drafted.first_q, q_weights + drafted.first_q, drafted.count, 1.0 / drafted.total};
  }
  return {&drafted.token, nullptr, 1, 1};
}

// Whether the token rule accepts a drafted token.
OUTRIDER_HD inline bool Accepted(const team::TargetRow& p, const team::SparseQ& q, int token,
                                 uint64_t position, const team::RoundNoise& noise) {
  if (p.shaped.point_mass >= 0) return token == p.shaped.point_mass;
  return Accepts(noise(Purpose::kAccept, position), token, p, q);
}

// Judges one sequence. `weights` and `shaped` are those of all rows ([rows, n] and [rows]); `races` has,
// under the coupled rule, what RaceRow gives for this sequence's rows that are finite and no point mass. Rows
// after the first rejection are not looked at. `*output` is written by one thread.
template <class Team>
OUTRIDER_HD void VerifySequence(Team& team, const float* weights, int n, const ShapedRow* shaped,
                                const int32_t* races, const VerifyInput& input, const DraftedToken* drafted,
                                const int32_t* q_ids, const float* q_weights, VerifyOutput* output) {
  const team::RoundNoise noise{input.key, input.round_start};
  double expected_accepted = 0, expected_variance = 0, surprisal = 0, entropy = 0;
  bool empty_residual = false;
  bool goes_on = true;
  int accepted = 0;
  int token = 0;
  while (goes_on) {
    const size_t index = static_cast<size_t>(input.first_row) + accepted;
    const team::TargetRow row{weights + index * static_cast<size_t>(n), n, shaped[index]};
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
      token = team::DrawBonus(team, row, position, noise);
      goes_on = false;
    } else {
      const team::SparseQ q = QOf(*guess, q_ids, q_weights);
      const double overlap = team::Overlap(team, row, q);
      const double b = overlap < 1 ? overlap : 1.0;
      expected_accepted += b;
      expected_variance += team::Times(b, 1 - b);
      goes_on = Accepted(row, q, guess->token, position, noise);
      token = goes_on ? guess->token : team::DrawCorrection(team, row, q, position, noise, &empty_residual);
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
