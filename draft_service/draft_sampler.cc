#include "draft_service/draft_sampler.h"

#include <algorithm>
#include <span>
#include <utility>
#include <variant>

#include "common/engine/proposers/tree_growth.h"
#include "common/spec/proposal.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// Whether one more token would come after the deadline, if it took as long as the last. An answer that leaves
// in time is used whatever its values are; whether a late one is used may depend on its length.
bool IsLateForMore(const SequenceState& sequence) {
  if (sequence.deadline() == absl::InfiniteFuture()) return false;
  const absl::Time now = absl::Now();
  return now + (now - sequence.step_started_at()) > sequence.deadline();
}

// Whether the next token is the one that the proposal is to follow.
bool DrawsNext(const SequenceState& sequence) {
  return sequence.work_as<ProposeWork>().draw_next && !sequence.answer().next;
}

}  // namespace

void DraftSampler::Begin(SequenceState& sequence) {
  sequence.set_logit_rows(std::holds_alternative<ProposeWork>(sequence.work()) ? 1 : 0);
}

absl::StatusOr<bool> DraftSampler::Sample(SequenceState& sequence, const LogitsView& rows) {
  if (sequence.work_as<ProposeWork>().tree) return SampleLevel(sequence, rows);
  const std::span<const TokenId> context = sequence.tokens();
  absl::StatusOr<WeightRow> row =
      sequence.controls().Apply(context, {rows.row(0).data(), rows.row(0).size()});
  Answer& answer = sequence.answer();
  if (!row.ok()) {
    // Tokens drafted before must not be lost. A draft may lack every token that a grammar allows.
    const bool has_none = ReasonOf(row.status()) == Controls::kNoTokenLeft;
    if (answer.next || !answer.proposal.empty() || has_none) return true;
    return row.status();
  }

  const ProposeWork& work = sequence.work_as<ProposeWork>();
  const SequenceParams& params = sequence.params();
  PhiloxNoise noise(params.key, static_cast<uint64_t>(sequence.committed()));
  ProposalNode node = Propose(params.rule, *row, params.draft_top_n, context.size(), noise);
  if (DrawsNext(sequence)) {
    sequence.CommitNext(node.token);
    return work.draft_tokens == 0 || IsLateForMore(sequence);
  }
  const TokenId token = node.token;
  Proposal& proposal = answer.proposal;
  AppendToChain(token, std::move(node.q), proposal);
  if (work.stop) proposal.back().confidence = Confidence(*row);
  if (work.alternatives > 0) {
    proposal.back().alternatives =
        Alternatives(params.rule, *row, params.key, context.size(), token, work.alternatives);
  }
  if (static_cast<int>(proposal.size()) == work.draft_tokens) return true;
  if (work.stop && EndsDraft(*work.stop, proposal)) return true;
  if (IsLateForMore(sequence)) return true;
  sequence.Append(token);
  return false;
}

// Draws a level, and feeds it back unless it is the last.
absl::StatusOr<bool> DraftSampler::SampleLevel(SequenceState& sequence, const LogitsView& rows) {
  const ProposeWork& work = sequence.work_as<ProposeWork>();
  const TreeGrowth growth{.shape = *work.tree, .depth = work.draft_tokens, .controls = sequence.controls()};
  const int drawn = OUTRIDER_TRY(DrawLevel(growth, sequence, rows));
  if (IsLateForMore(sequence)) return true;
  sequence.set_logit_rows(AppendLevel(growth, sequence, drawn));
  return sequence.logit_rows() == 0;
}

// A device drafts all tokens in one step, so neither a deadline nor a DraftStop ends it halfway. Its
// proposals have no confidences, which tells the caller to choose K itself, and no alternatives. The token
// that a proposal is to follow is drawn on the host, since it leaves first.
std::optional<DeviceTask> DraftSampler::MakeDeviceTask(const SequenceState& sequence) const {
  if (DrawsNext(sequence) || sequence.work_as<ProposeWork>().tree) return std::nullopt;
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
