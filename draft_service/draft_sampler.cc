#include "draft_service/draft_sampler.h"

namespace outrider {

absl::Status DraftSampler::Begin(SequenceState& sequence) {
  sequence.logit_rows = sequence.item.draft_tokens > 0 ? 1 : 0;
  return absl::OkStatus();
}

absl::StatusOr<bool> DraftSampler::Decide(SequenceState& sequence, const LogitsView& rows) {
  const std::span<const TokenId> context = sequence.cache.tokens();
  absl::StatusOr<WeightRow> row = sequence.controls->Apply(context, {rows.row(0).data(), rows.row(0).size()});
  if (!row.ok()) return row.status();

  const SequenceParams& params = *sequence.params;
  const uint64_t position = context.size();
  TokenId token;
  Distribution q;
  if (params.rule == Rule::kCoupled) {
    token = Race(*row, params.key, position);
  } else {
    // q is what is sent, and the token is drawn from what is sent.
    q = TruncateTopN(*row, params.draft_top_n);
    token = DraftSample(q, params.key, position, sequence.committed);
  }
  Proposal& proposal = sequence.answer.proposal;
  AppendToChain(token, std::move(q), proposal);
  if (static_cast<int>(proposal.size()) == sequence.item.draft_tokens) return true;
  sequence.cache.Append(token);
  return false;
}

// A device drafts all tokens in one go, so that a later budget does not end it halfway.
std::optional<DeviceTask> DraftSampler::MakeDeviceTask(const SequenceState& sequence) const {
  return DeviceTask{.params = sequence.params.get(),
                    .round_start = static_cast<uint64_t>(sequence.committed),
                    .work = ProposeTask{.draft_tokens = sequence.item.draft_tokens, .proposal = {}},
                    .status = absl::OkStatus()};
}

void DraftSampler::TakeDeviceResult(SequenceState& sequence, DeviceTask& task) {
  sequence.answer.proposal = std::move(std::get<ProposeTask>(task.work).proposal);
  for (size_t i = 0; i + 1 < sequence.answer.proposal.size(); ++i) {
    sequence.cache.Append(sequence.answer.proposal[i].token);
  }
}

std::optional<absl::Status> DraftSampler::OnDeadline(SequenceState& sequence) {
  if (sequence.cache.size() > sequence.cache.num_computed())
    sequence.cache.Truncate(sequence.cache.num_computed());
  return absl::OkStatus();
}

}  // namespace outrider
