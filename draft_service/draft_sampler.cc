#include "draft_service/draft_sampler.h"

#include <utility>
#include <variant>

namespace outrider {
namespace {

// Whether one more token would come after the deadline, if it took as long as the last. An answer that leaves
// in time is used whatever its values are; one that is late for its length may not be.
bool IsLateForMore(const SequenceState& sequence) {
  if (sequence.deadline() == absl::InfiniteFuture()) return false;
  const absl::Time now = absl::Now();
  return now + (now - sequence.step_started_at()) > sequence.deadline();
}

}  // namespace

void DraftSampler::Begin(SequenceState& sequence) {
  sequence.set_logit_rows(std::holds_alternative<ProposeWork>(sequence.work()) ? 1 : 0);
}

absl::StatusOr<bool> DraftSampler::Sample(SequenceState& sequence, const LogitsView& rows) {
  const std::span<const TokenId> context = sequence.tokens();
  absl::StatusOr<WeightRow> row =
      sequence.controls().Apply(context, {rows.row(0).data(), rows.row(0).size()});
  if (!row.ok()) {
    // What was drafted before is not to be lost for what it is.
    if (!sequence.answer().proposal.empty()) return true;
    return row.status();
  }

  const ProposeWork& work = sequence.work_as<ProposeWork>();
  const float confidence = work.stop ? Confidence(*row) : 0;
  const SequenceParams& params = sequence.params();
  PhiloxNoise noise(params.key, static_cast<uint64_t>(sequence.committed()));
  ProposalNode node = Propose(params.rule, *row, params.draft_top_n, context.size(), noise);
  const TokenId token = node.token;
  Proposal& proposal = sequence.answer().proposal;
  AppendToChain(token, std::move(node.q), proposal);
  proposal.back().confidence = confidence;
  if (static_cast<int>(proposal.size()) == work.draft_tokens) return true;
  if (work.stop && EndsDraft(*work.stop, proposal)) return true;
  if (IsLateForMore(sequence)) return true;
  sequence.Append(token);
  return false;
}

// A device drafts all tokens in one step, so neither a deadline nor a DraftStop ends it halfway, and its
// proposals have no confidences: who asked sees by that that it has to choose K itself.
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
