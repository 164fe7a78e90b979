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
  PhiloxNoise noise(params.key, static_cast<uint64_t>(sequence.committed()));
  ProposalNode node = Propose(params.rule, *row, params.draft_top_n, context.size(), noise);
  const TokenId token = node.token;
  Proposal& proposal = sequence.answer().proposal;
  AppendToChain(token, std::move(node.q), proposal);
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
