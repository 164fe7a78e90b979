#include "common/engine/device_task.h"

#include <algorithm>
#include <cstddef>

#include "common/engine/cuda/decide_types.h"

namespace outrider {
namespace {

bool Delegable(const SamplingParams& sampling) {
  const bool penalties = sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 ||
                         sampling.frequency_penalty != 0 || !sampling.logit_bias.empty();
  const bool masks = !sampling.allowed_ids.empty() || !sampling.bad_ids.empty() ||
                     (sampling.min_tokens > 0 && !sampling.eos_ids.empty());
  return !penalties && !masks;
}

bool Delegable(const Distribution& q, Rule rule) {
  switch (q.form) {
    case Distribution::Form::kAbsent:
      return rule == Rule::kCoupled;  // else an error, which the host finds
    case Distribution::Form::kPointMass:
      return true;
    case Distribution::Form::kSparse:
      return q.ids.size() <= static_cast<size_t>(cuda::kMaxTopN);
    case Distribution::Form::kDense:
      return false;
  }
  return false;
}

}  // namespace

bool Delegable(const SequenceParams& params, absl::Span<const ProposalNode> draft) {
  return Delegable(params.sampling) && (params.rule == Rule::kToken || params.rule == Rule::kCoupled) &&
         params.lenience == 1 && params.logprobs < 0 &&
         draft.size() <= static_cast<size_t>(kMaxDraftTokens) &&
         std::all_of(draft.begin(), draft.end(),
                     [&](const ProposalNode& token) { return Delegable(token.q, params.rule); });
}

bool DelegableProposal(const SequenceParams& params, int vocab) {
  const bool dense = params.rule != Rule::kCoupled && params.sampling.temperature > 0 &&
                     (params.draft_top_n <= 0 || params.draft_top_n >= vocab);
  return Delegable(params.sampling) && !dense && params.draft_top_n <= cuda::kMaxTopN;
}

}  // namespace outrider
