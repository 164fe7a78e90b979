// The decisions of draft and target on the device, from shaped rows: the draft's proposal for a position, and
// the verdict over a chain under the token rule at lenience 1 and the coupled rule. Tokens and canaries equal
// those of common/spec on the host. Logarithms come from the machine's library: log-probabilities, and the
// sums of them and of entropies, may differ in the last bits between machines. No decision depends on them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/engine/cuda/decide_types.h"
#include "common/spec/judge_chain.h"
#include "common/spec/random.h"
#include "common/spec/team/row_draw.h"
#include "common/spec/team/row_sums.h"
#include "common/spec/team/row_verify.h"
#include "common/spec/team/team.h"

namespace outrider::cuda {

// The random numbers of a round whose races are run on demand. Collective.
template <class Team>
struct RacingNoise : RoundNoise {
  Team& team;

  OUTRIDER_HD int Race(uint64_t position, const team::TargetRow& row) const {
    return team::RaceRow(team, row.weights, row.n, key, position);
  }
};

// A draft's row as ProposeToken takes it, in device memory. Collective; every thread has its own `q`.
template <class Team>
class DeviceDraft {
 public:
  OUTRIDER_HD DeviceDraft(Team& team, const team::TargetRow& row, int top_n, int32_t* q_ids, float* q_weights,
                          ProposeOutput& q)
      : team_(team), row_(row), top_n_(top_n), q_ids_(q_ids), q_weights_(q_weights), q_(q) {}

  OUTRIDER_HD const team::TargetRow& row() const { return row_; }
  OUTRIDER_HD TokenId point_mass() const { return row_.shaped.point_mass; }
  OUTRIDER_HD void MakeQ() {
    q_.form = QForm::kPointMass;
    if (point_mass() >= 0) return;
    q_.form = QForm::kSparse;
    q_.count = team::TruncateTopN(team_, row_.weights, row_.n, top_n_, q_ids_, q_weights_);
    q_.total = team::ByFirstGroup(
        team_, [&](auto& local) { return team::SumRow(local, team::FloatRow{q_weights_}, q_.count); });
  }
  OUTRIDER_HD TokenId Sample(double u) const {
    return team::ByFirstGroup(team_, [&](auto& local) {
      return q_ids_[team::SampleIndex(local, team::FloatRow{q_weights_}, q_.count, q_.total, u)];
    });
  }

 private:
  Team& team_;
  const team::TargetRow row_;
  const int top_n_;
  int32_t* const q_ids_;
  float* const q_weights_;
  ProposeOutput& q_;
};

// Writes the token that a draft proposes after a shaped row, and its q. q_ids and q_weights have room for
// kMaxTopN entries. One thread writes `*output`. If the head was cut (not under the coupled rule),
// `head_tokens` has the token of each column; null: a column is a token.
template <class Team>
OUTRIDER_HD void ProposeRow(Team& team, const float* weights, int n, const ShapedRow& shaped,
                            const ProposeInput& input, int step, ProposeOutput* output, int32_t* q_ids,
                            float* q_weights, const int32_t* head_tokens) {
  ProposeOutput result{1, 0, QForm::kAbsent, 0, shaped.finite};
  if (shaped.finite != 0) {
    DeviceDraft<Team> draft(team, {weights, n, shaped}, input.top_n, q_ids, q_weights, result);
    const RacingNoise<Team> noise{{input.key, input.round_start}, team};
    const uint64_t position = input.position + static_cast<uint64_t>(step);
    result.token = ProposeToken(draft, input.coupled != 0, position, noise);
    if (head_tokens != nullptr) {
      result.token = head_tokens[result.token];
      team.Sync();  // until the last thread has read the id that it drew
      const int count = result.form == QForm::kSparse ? result.count : 0;
      for (int i = team.rank(); i < count; i += team.size()) q_ids[i] = head_tokens[q_ids[i]];
    }
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

// The random numbers of a round whose races have been run: `races` has the winner for each of its rows.
struct RacedNoise : RoundNoise {
  const int32_t* races;

  OUTRIDER_HD int Race(uint64_t position, const team::TargetRow& /*row*/) const {
    return races[position - round_start];
  }
};

// A chain as JudgeChain takes it, in device memory. Collective.
template <class Team>
class DeviceChain {
 public:
  // `weights` and `shaped` point to the chain's first row, `drafted` to its first node.
  OUTRIDER_HD DeviceChain(Team& team, const float* weights, int n, const ShapedRow* shaped,
                          const DraftedToken* drafted, const int32_t* q_ids, const float* q_weights,
                          double* log_probabilities)
      : team_(team),
        row_{weights, n, {}},
        weights_(weights),
        shaped_(shaped),
        drafted_(drafted),
        q_ids_(q_ids),
        q_weights_(q_weights),
        log_probabilities_(log_probabilities) {}

  OUTRIDER_HD bool Reach(int i) {
    index_ = i;
    row_ = {weights_ + static_cast<size_t>(i) * static_cast<size_t>(row_.n), row_.n, shaped_[i]};
    return row_.shaped.finite != 0;
  }
  OUTRIDER_HD const team::TargetRow& row() const { return row_; }
  OUTRIDER_HD TokenId point_mass() const { return row_.shaped.point_mass; }
  OUTRIDER_HD double Probability(TokenId token) const { return row_(token); }
  OUTRIDER_HD double Entropy() const { return row_.shaped.entropy; }
  OUTRIDER_HD TokenId Sample(double u) const {
    return team::SampleIndex(team_, team::FloatRow{row_.weights}, row_.n, row_.shaped.total, u);
  }
  OUTRIDER_HD void Record(double log_probability) {
    if (team_.rank() == 0) log_probabilities_[index_] = log_probability;
  }

  OUTRIDER_HD TokenId token() const { return drafted_[index_].token; }
  OUTRIDER_HD double Overlap() const { return team::Overlap(team_, row_, q()); }
  OUTRIDER_HD bool Accepts(double u) const { return outrider::Accepts(u, token(), row_, q()); }
  OUTRIDER_HD bool AcceptsWithoutNoise() const { return token() == point_mass(); }
  OUTRIDER_HD team::RowRest<Team> Rest() const { return {team_, row_, q()}; }

 private:
  OUTRIDER_HD team::SparseQ q() const { return QOf(drafted_[index_], q_ids_, q_weights_); }

  Team& team_;
  team::TargetRow row_;
  const float* weights_;
  const ShapedRow* shaped_;
  const DraftedToken* drafted_;
  const int32_t* q_ids_;
  const float* q_weights_;
  double* log_probabilities_;
  int index_ = 0;
};

// Judges one sequence. `weights` and `shaped` are those of all rows ([rows, n] and [rows]); under the coupled
// rule, `races` has RaceRow's results for this sequence's rows that are finite and not a point mass. Rows
// after the first rejection are ignored. One thread writes `*output`.
template <class Team>
OUTRIDER_HD void VerifySequence(Team& team, const float* weights, int n, const ShapedRow* shaped,
                                const int32_t* races, const VerifyInput& input, const DraftedToken* drafted,
                                const int32_t* q_ids, const float* q_weights, VerifyOutput* output) {
  const size_t first = static_cast<size_t>(input.first_row);
  const RacedNoise noise{{input.key, input.round_start}, races + first};
  DeviceChain<Team> chain(team, weights + first * static_cast<size_t>(n), n, shaped + first,
                          drafted + input.first_drafted, q_ids, q_weights, output->log_probabilities);
  ChainVerdict verdict;
  const bool finite =
      JudgeChain(chain, input.drafted, input.coupled != 0, input.round_start, noise, &verdict);
  if (team.rank() != 0) return;
  output->verdict = verdict;
  output->finite = finite ? 1 : 0;
}

}  // namespace outrider::cuda
