#include "target_service/target_decider.h"

#include "common/spec/status.h"

namespace outrider {
namespace {

// Of the model's own distribution, from finite logits.
PositionLogProbabilities Describe(std::span<const float> logits, TokenId token, int top) {
  return {{token, logits[token] - LogSumExp(logits)}, TopLogProbabilities(logits, top)};
}

}  // namespace

absl::Status TargetDecider::Begin(Session& session) {
  const Proposal& draft = session.item.draft;
  for (const ProposalNode& node : draft) session.cache.Append(node.token);
  session.wanted = session.item.append_only ? 0 : static_cast<int>(draft.size()) + 1;
  return absl::OkStatus();
}

void TargetDecider::Score(Session& session, int first, const LogitsView& rows) {
  for (int i = 0; i < rows.rows; ++i) {
    const int next = first + i + 1;
    if (next >= session.committed) return;
    session.answer.prompt_logprobs.push_back(Describe({rows.row(i).data(), rows.row(i).size()},
                                                      session.cache.tokens()[next],
                                                      session.item.prompt_logprobs));
  }
}

absl::StatusOr<bool> TargetDecider::Decide(Session& session, const LogitsView& rows) {
  const int n = session.committed;
  const SequenceParams& params = *session.params;
  // For log-probabilities: the rows of this round, and the same before the controls.
  std::vector<WeightRow> reached;
  std::vector<std::vector<float>> untouched;
  const auto row = [&](int i) {
    const std::span<float> logits(rows.row(i).data(), rows.row(i).size());
    if (params.logprobs >= 0 && params.logprobs_before_controls) {
      untouched.emplace_back(logits.begin(), logits.end());
    }
    absl::StatusOr<WeightRow> shaped = session.controls->Apply(session.cache.tokens().first(n + i), logits);
    if (params.logprobs >= 0 && shaped.ok()) reached.push_back(*shaped);
    return shaped;
  };
  const VerifyOptions options{.rule = params.rule, .lenience = params.lenience};
  absl::StatusOr<Verdict> verdict = Verify(options, session.item.draft, row, n, params.key);
  if (!verdict.ok()) return verdict.status();
  for (size_t i = 0; params.logprobs >= 0 && i <= verdict->path.size(); ++i) {
    const TokenId token =
        i < verdict->path.size() ? session.item.draft[verdict->path[i]].token : verdict->token;
    session.answer.logprobs.push_back(
        params.logprobs_before_controls
            ? Describe(untouched[i], token, params.logprobs)
            : PositionLogProbabilities{{token, verdict->log_probabilities[i]},
                                       TopLogProbabilities(reached[i], params.logprobs)});
  }
  session.answer.verdict = std::make_unique<Verdict>(*std::move(verdict));
  return true;
}

std::optional<DeviceTask> TargetDecider::Delegate(const Session& session) const {
  const Proposal& draft = session.item.draft;
  if (session.item.prompt_logprobs >= 0 || !Delegable(*session.params, draft)) return std::nullopt;
  return DeviceTask{.params = session.params.get(),
                    .round_start = static_cast<uint64_t>(session.committed),
                    .work = VerifyTask{.draft = draft, .verdict = {}},
                    .status = absl::OkStatus()};
}

void TargetDecider::Conclude(Session& session, DeviceTask& task) {
  session.answer.verdict = std::make_unique<Verdict>(std::move(std::get<VerifyTask>(task.work).verdict));
}

std::optional<absl::Status> TargetDecider::OnDeadline(Session& session) {
  if (session.begun) return std::nullopt;
  return MakeError(absl::StatusCode::kDeadlineExceeded, "BUDGET_EXCEEDED",
                   "budget_exceeded: not begun within the item's budget");
}

}  // namespace outrider
