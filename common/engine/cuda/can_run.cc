#include "common/engine/cuda/can_run.h"

#include <algorithm>
#include <cstddef>
#include <variant>

#include "common/engine/cuda/decide_types.h"

namespace outrider::cuda {
namespace {

bool CanApply(const SamplingParams& sampling) {
  const bool penalties = sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 ||
                         sampling.frequency_penalty != 0 || !sampling.logit_bias.empty();
  const bool masks = !sampling.allowed_ids.empty() || !sampling.bad_ids.empty() ||
                     (sampling.min_tokens > 0 && !sampling.eos_ids.empty());
  return !penalties && !masks;
}

bool CanTest(const Distribution& q, Rule rule) {
  switch (q.form) {
    case Distribution::Form::kAbsent:
      return rule == Rule::kCoupled;  // else an error, which the host reports
    case Distribution::Form::kPointMass:
      return true;
    case Distribution::Form::kSparse:
      return q.ids.size() <= static_cast<size_t>(kMaxTopN);
    case Distribution::Form::kDense:
      return false;
  }
  return false;
}

bool CanJudge(const SequenceParams& params, absl::Span<const ProposalNode> draft) {
  return (params.rule == Rule::kToken || params.rule == Rule::kCoupled) && params.lenience == 1 &&
         params.logprobs < 0 && draft.size() <= static_cast<size_t>(kMaxDraftTokens) && IsChain(draft) &&
         std::all_of(draft.begin(), draft.end(),
                     [&](const ProposalNode& node) { return CanTest(node.q, params.rule); });
}

bool CanDraft(const SequenceParams& params, int draft_tokens, int vocab) {
  const bool dense = params.rule != Rule::kCoupled && params.sampling.temperature > 0 &&
                     (params.draft_top_n <= 0 || params.draft_top_n >= vocab);
  return !dense && params.draft_top_n <= kMaxTopN && draft_tokens <= kMaxDraftTokens;
}

}  // namespace

bool CanRun(const DeviceTask& task, int vocab) {
  const SequenceParams& params = *task.params;
  if (!CanApply(params.sampling)) return false;
  if (const auto* propose = std::get_if<ProposeTask>(&task.work)) {
    return CanDraft(params, propose->draft_tokens, vocab);
  }
  return CanJudge(params, std::get<VerifyTask>(task.work).draft);
}

}  // namespace outrider::cuda
