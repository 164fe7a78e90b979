#include "draft_service/draft_sampler.h"

#include <algorithm>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "common/engine/proposers/tree_growth.h"
#include "common/spec/proposal.h"
#include "common/spec/status.h"
#include "draft_service/lookup.h"

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

// Draws the token that follows the first `n`, for the answer. Returns whether the answer is complete.
absl::StatusOr<bool> Draw(SequenceState& sequence, size_t n, absl::Span<float> logits) {
  const std::span<const TokenId> context = sequence.tokens().first(n);
  absl::StatusOr<WeightRow> row = sequence.controls().Apply(context, {logits.data(), logits.size()});
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
  ProposalNode node = Propose(params.rule, *row, params.draft_top_n, n, noise);
  if (DrawsNext(sequence)) {
    sequence.CommitNext(node.token);
    return work.draft_tokens == 0 || IsLateForMore(sequence);
  }
  const TokenId token = node.token;
  Proposal& proposal = answer.proposal;
  AppendToChain(token, std::move(node.q), proposal);
  if (work.stop) proposal.back().confidence = Confidence(*row);
  if (work.alternatives > 0) {
    proposal.back().alternatives = Alternatives(params.rule, *row, params.key, n, token, work.alternatives);
  }
  if (static_cast<int>(proposal.size()) == work.draft_tokens) return true;
  if (work.stop && EndsDraft(*work.stop, proposal)) return true;
  return IsLateForMore(sequence);
}

}  // namespace

void DraftSampler::Begin(SequenceState& sequence) {
  const auto* propose = std::get_if<ProposeWork>(&sequence.work());
  sequence.set_logit_rows(propose != nullptr ? 1 : 0);
  if (propose != nullptr && !propose->tree && !propose->draw_next) Guess(sequence);
}

void DraftSampler::Guess(SequenceState& sequence) const {
  const int wanted =
      sequence.work_as<ProposeWork>().draft_tokens - static_cast<int>(sequence.answer().proposal.size());
  // The last token of a proposal is not fed back.
  const size_t masks = static_cast<size_t>(std::min(options_.parallel_tokens, wanted) - 1);
  const std::vector<TokenId> guess =
      options_.parallel_tokens > 1 ? std::vector<TokenId>(masks, options_.mask)
                                   : LookUp(sequence.tokens(), std::min(options_.lookup_tokens, wanted - 1));
  for (const TokenId token : guess) sequence.Append(token);
  sequence.set_logit_rows(1 + static_cast<int>(guess.size()));
}

absl::StatusOr<bool> DraftSampler::Sample(SequenceState& sequence, const LogitsView& rows) {
  if (sequence.work_as<ProposeWork>().tree) return SampleLevel(sequence, rows);
  const bool draws_next = DrawsNext(sequence);
  if (options_.parallel_tokens > 1 && !draws_next) return SampleMasked(sequence, rows);
  const size_t guessed = static_cast<size_t>(rows.rows) - 1, before = sequence.tokens().size() - guessed;
  for (size_t i = 0; i <= guessed; ++i) {
    const size_t n = before + i;
    if (OUTRIDER_TRY(Draw(sequence, n, rows.row(static_cast<int>(i))))) {
      if (i < guessed) sequence.Rewind(n);
      return true;
    }
    if (draws_next) break;  // the token is in the sequence, and nothing was guessed
    const TokenId token = sequence.answer().proposal.back().token;
    if (i < guessed && sequence.tokens()[n] == token) continue;
    sequence.Rewind(n);
    sequence.Append(token);
    break;
  }
  Guess(sequence);
  return false;
}

// The drawn tokens take the places of the masks. They are computed in the next pass, if there is one.
absl::StatusOr<bool> DraftSampler::SampleMasked(SequenceState& sequence, const LogitsView& rows) {
  const size_t before = sequence.tokens().size() - static_cast<size_t>(rows.rows - 1);
  sequence.Rewind(before);
  for (int i = 0; i < rows.rows; ++i) {
    if (OUTRIDER_TRY(Draw(sequence, sequence.tokens().size(), rows.row(i)))) {
      sequence.Rewind(before);
      return true;
    }
    sequence.Append(sequence.answer().proposal.back().token);
  }
  Guess(sequence);
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
// that a proposal is to follow is drawn on the host, since it leaves first, and so are all tokens after one
// that was guessed or masked.
std::optional<DeviceTask> DraftSampler::MakeDeviceTask(const SequenceState& sequence) const {
  const bool begins = sequence.answer().proposal.empty() && sequence.logit_rows() == 1;
  if (!begins || DrawsNext(sequence) || sequence.work_as<ProposeWork>().tree) return std::nullopt;
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
