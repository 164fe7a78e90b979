#include "common/engine/cuda/decide_convert.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "common/spec/check.h"
#include "common/spec/status.h"

namespace outrider::cuda {
namespace {

QForm ToQForm(Distribution::Form form) {
  OUTRIDER_CHECK(form != Distribution::Form::kDense);
  switch (form) {
    case Distribution::Form::kPointMass:
      return QForm::kPointMass;
    case Distribution::Form::kSparse:
      return QForm::kSparse;
    default:
      return QForm::kAbsent;
  }
}

}  // namespace

ShapeParams ToShapeParams(const SamplingParams& params, bool entropy) {
  ShapeParams result;
  result.active = 1;
  result.entropy = entropy ? 1 : 0;
  result.controls = ToRowControls(params);
  return result;
}

ProposeInput ToProposeInput(const RandomKey& key, Rule rule, uint64_t position, uint64_t round_start,
                            int steps, int top_n) {
  return {.key = key,
          .position = position,
          .round_start = round_start,
          .steps = steps,
          .coupled = rule == Rule::kCoupled ? 1 : 0,
          .top_n = top_n};
}

absl::Status AppendTo(Proposal& proposal, const ProposeOutput& output, const int32_t* q_ids,
                      const float* q_weights) {
  if (output.finite == 0) return NotFiniteError();
  Distribution q;
  switch (output.form) {
    case QForm::kAbsent:
      break;
    case QForm::kPointMass:
      q.form = Distribution::Form::kPointMass;
      q.ids = {output.token};
      q.total = 1;
      break;
    case QForm::kSparse:
      q.form = Distribution::Form::kSparse;
      q.ids.assign(q_ids, q_ids + output.count);
      q.weights.assign(q_weights, q_weights + output.count);
      q.total = output.total;
      break;
  }
  AppendToChain(output.token, std::move(q), proposal);
  return absl::OkStatus();
}

VerifyInput ToVerifyInput(const RandomKey& key, Rule rule, uint64_t round_start, int first_row,
                          int first_drafted, int drafted) {
  OUTRIDER_CHECK(rule != Rule::kBlock && drafted <= kMaxDraftTokens);
  return {.key = key,
          .round_start = round_start,
          .first_row = first_row,
          .first_drafted = first_drafted,
          .drafted = drafted,
          .coupled = rule == Rule::kCoupled ? 1 : 0,
          .active = 1};
}

int PackDraft(std::span<const ProposalNode> draft, int first_q, DraftedToken* drafted, int32_t* q_ids,
              float* q_weights) {
  for (const ProposalNode& token : draft) {
    const QForm form = ToQForm(token.q.form);
    const int count = form == QForm::kSparse ? static_cast<int>(token.q.ids.size()) : 0;
    OUTRIDER_CHECK(count <= kMaxTopN);
    *drafted++ = {
        .total = token.q.total, .token = token.token, .form = form, .first_q = first_q, .count = count};
    std::copy_n(token.q.ids.begin(), count, q_ids + first_q);
    std::copy_n(token.q.weights.begin(), count, q_weights + first_q);
    first_q += count;
  }
  return first_q;
}

absl::StatusOr<Verdict> ToVerdict(const VerifyOutput& output, int drafted) {
  if (output.finite == 0) return NotFiniteError();
  const ChainVerdict& verdict = output.verdict;
  const double* const first = output.log_probabilities;
  return VerdictOf(verdict, drafted, {first, first + verdict.accepted + 1});
}

}  // namespace outrider::cuda
