#include "draft_service/draft_sampler.h"

#include <utility>
#include <variant>

namespace outrider {

void DraftSampler::Begin(SequenceState& sequence) {
  sequence.set_logit_rows(std::holds_alternative<ProposeWork>(sequence.work()) ? 1 : 0);
}

absl::StatusOr<bool> DraftSampler::Sample(SequenceState& sequence, const LogitsView& rows) {
  const std::span<const TokenId> context = sequence.tokens();
  absl::StatusOr<WeightRow> row =
      sequence.controls().Apply(context, {rows.row(0).data(), rows.row(0).size()});
  if (!row.ok()) return row.status();

  const SequenceParams& params = sequence.params();
  const uint64_t position = context.size();
  TokenId token;
  Distribution q;
  if (params.rule == Rule::kCoupled) {
    token = Race(*row, params.key, position);
  } else {
    // q is exactly what is sent, and the token is drawn from it.
    q = TruncateTopN(*row, params.draft_top_n);
    token = DraftSample(q, params.key, position, static_cast<uint64_t>(sequence.committed()));
  }
  Proposal& proposal = sequence.answer().proposal;
  AppendToChain(token, std::move(q), proposal);
  if (static_cast<int>(proposal.size()) == sequence.work_as<ProposeWork>().draft_tokens) return true;
  sequence.Append(token);
  return false;
}

// A device drafts all tokens in one step, so a deadline cannot end it halfway.
std::optional<DeviceTask> DraftSampler::MakeDeviceTask(const SequenceState& sequence) const {
  return DeviceTask{.params = &sequence.params(),
                    .round_start = static_cast<uint64_t>(sequence.committed()),
                    .work = ProposeTask{.draft_tokens = sequence.work_as<ProposeWork>().draft_tokens},
                    .status = absl::OkStatus()};
}

void DraftSampler::TakeDeviceResult(SequenceState& sequence, DeviceTask& task) {
  Proposal& proposal = sequence.answer().proposal;
  proposal = std::move(std::get<ProposeTask>(task.work).proposal);
  for (size_t i = 0; i + 1 < proposal.size(); ++i) sequence.Append(proposal[i].token);
}

std::optional<absl::Status> DraftSampler::OnDeadline(SequenceState& sequence) {
  sequence.DropPending();
  return absl::OkStatus();
}

}  // namespace outrider
