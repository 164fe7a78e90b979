#include "target_service/rejection_sampler.h"

#include "common/spec/status.h"

namespace outrider {
namespace {

// Of the model's own distribution, from finite logits.
PositionLogProbabilities Describe(std::span<const float> logits, TokenId token, int top) {
  return {{token, logits[token] - LogSumExp(logits)}, TopLogProbabilities(logits, top)};
}

}  // namespace

absl::Status RejectionSampler::Begin(SequenceState& sequence) {
  const Proposal& draft = sequence.item.draft;
  for (const ProposalNode& node : draft) sequence.cache.Append(node.token);
  sequence.logit_rows = sequence.item.append_only ? 0 : static_cast<int>(draft.size()) + 1;
  return absl::OkStatus();
}

void RejectionSampler::Score(SequenceState& sequence, int first, const LogitsView& rows) {
  for (int i = 0; i < rows.rows; ++i) {
    const int next = first + i + 1;
    if (next >= sequence.committed) return;
    sequence.answer.prompt_logprobs.push_back(Describe({rows.row(i).data(), rows.row(i).size()},
                                                       sequence.cache.tokens()[next],
                                                       sequence.item.prompt_logprobs));
  }
}

absl::StatusOr<bool> RejectionSampler::Decide(SequenceState& sequence, const LogitsView& rows) {
  const int n = sequence.committed;
  const SequenceParams& params = *sequence.params;
  // For log-probabilities: the rows of this round, and the same before the controls.
  std::vector<WeightRow> reached;
  std::vector<std::vector<float>> untouched;
  const auto row = [&](int i) {
    const std::span<float> logits(rows.row(i).data(), rows.row(i).size());
    if (params.logprobs >= 0 && params.logprobs_before_controls) {
      untouched.emplace_back(logits.begin(), logits.end());
    }
    absl::StatusOr<WeightRow> shaped = sequence.controls->Apply(sequence.cache.tokens().first(n + i), logits);
    if (params.logprobs >= 0 && shaped.ok()) reached.push_back(*shaped);
    return shaped;
  };
  const VerifyOptions options{.rule = params.rule, .lenience = params.lenience};
  absl::StatusOr<Verdict> verdict = Verify(options, sequence.item.draft, row, n, params.key);
  if (!verdict.ok()) return verdict.status();
  for (size_t i = 0; params.logprobs >= 0 && i <= verdict->path.size(); ++i) {
    const TokenId token =
        i < verdict->path.size() ? sequence.item.draft[verdict->path[i]].token : verdict->token;
    sequence.answer.logprobs.push_back(
        params.logprobs_before_controls
            ? Describe(untouched[i], token, params.logprobs)
            : PositionLogProbabilities{{token, verdict->log_probabilities[i]},
                                       TopLogProbabilities(reached[i], params.logprobs)});
  }
  sequence.answer.verdict = std::make_unique<Verdict>(*std::move(verdict));
  return true;
}

std::optional<DeviceTask> RejectionSampler::MakeDeviceTask(const SequenceState& sequence) const {
  if (sequence.item.prompt_logprobs >= 0) return std::nullopt;
  return DeviceTask{.params = sequence.params.get(),
                    .round_start = static_cast<uint64_t>(sequence.committed),
                    .work = VerifyTask{.draft = sequence.item.draft, .verdict = {}},
                    .status = absl::OkStatus()};
}

void RejectionSampler::TakeDeviceResult(SequenceState& sequence, DeviceTask& task) {
  sequence.answer.verdict = std::make_unique<Verdict>(std::move(std::get<VerifyTask>(task.work).verdict));
}

std::optional<absl::Status> RejectionSampler::OnDeadline(SequenceState& sequence) {
  if (sequence.begun) return std::nullopt;
  return MakeError(absl::StatusCode::kDeadlineExceeded, "BUDGET_EXCEEDED",
                   "budget_exceeded: not begun within the item's budget");
}

}  // namespace outrider
