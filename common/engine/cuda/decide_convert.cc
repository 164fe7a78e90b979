#include "common/engine/cuda/decide_convert.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "common/spec/check.h"
#include "common/spec/status.h"

namespace outrider::cuda {
namespace {

bool CanApply(const SamplingParams& sampling) {
  const bool penalties = sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 ||
                         sampling.frequency_penalty != 0 || !sampling.logit_bias.empty();
  const bool masks = !sampling.allowed_ids.empty() || !sampling.bad_ids.empty() ||
                     (sampling.min_tokens > 0 && !sampling.eos_ids.empty()) || sampling.grammar != nullptr;
  return !penalties && !masks;
}

// If a draft under the token rule lacks a q, the host reports the error.
bool CanVerify(const Distribution& q, Rule rule) {
  if (q.form == Distribution::Form::kSparse) return q.ids.size() <= static_cast<size_t>(kMaxTopN);
  return q.form == Distribution::Form::kPointMass ||
         (q.form == Distribution::Form::kAbsent && rule == Rule::kCoupled);
}

QForm ToQForm(Distribution::Form form) {
  OUTRIDER_CHECK(form != Distribution::Form::kDense);
  if (form == Distribution::Form::kAbsent) return QForm::kAbsent;
  return form == Distribution::Form::kSparse ? QForm::kSparse : QForm::kPointMass;
}

}  // namespace

bool CanRun(const DeviceTask& task, const DecoderConfig& spec) {
  const SequenceParams& params = *task.params;
  if (!CanApply(params.sampling)) return false;
  const bool coupled = params.rule == Rule::kCoupled;
  // A race needs a random number for every token of the vocabulary, and a verdict needs all logits.
  const bool cut = !spec.head_tokens.empty();
  if (const auto* propose = std::get_if<ProposeTask>(&task.work)) {
    const bool sparse = params.draft_top_n > 0 && params.draft_top_n < spec.logit_columns();
    return (coupled ? !cut : sparse || params.sampling.temperature <= 0) && params.draft_top_n <= kMaxTopN &&
           propose->draft_tokens <= kMaxDraftTokens;
  }
  const absl::Span<const ProposalNode> draft = std::get<VerifyTask>(task.work).draft;
  return !cut && (params.rule == Rule::kToken || coupled) && params.lenience == 1 && params.logprobs < 0 &&
         draft.size() <= static_cast<size_t>(kMaxDraftTokens) && IsChain(draft) &&
         std::all_of(draft.begin(), draft.end(),
                     [&](const ProposalNode& node) { return CanVerify(node.q, params.rule); });
}

ShapeParams ToShapeParams(const SamplingParams& params, bool entropy) {
  return {.controls = ToRowControls(params), .entropy = entropy ? 1 : 0, .active = 1};
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
  if (output.form == QForm::kPointMass) {
    q.form = Distribution::Form::kPointMass;
    q.ids = {output.token};
    q.total = 1;
  } else if (output.form == QForm::kSparse) {
    q.form = Distribution::Form::kSparse;
    q.ids.assign(q_ids, q_ids + output.count);
    q.weights.assign(q_weights, q_weights + output.count);
    q.total = output.total;
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
