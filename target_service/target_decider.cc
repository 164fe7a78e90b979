#include "target_service/target_decider.h"

namespace outrider {

absl::Status TargetDecider::Begin(Session& session) {
  const std::vector<DraftToken>& draft = session.item.draft;
  for (const DraftToken& drafted : draft) session.cache.Append(drafted.token);
  session.wanted = session.item.append_only ? 0 : static_cast<int>(draft.size()) + 1;
  return absl::OkStatus();
}

absl::StatusOr<bool> TargetDecider::Decide(Session& session, const LogitsView& rows) {
  const int n = session.committed;
  const auto row = [&](int i) {
    return session.controls->Apply(session.cache.tokens().first(n + i),
                                   {rows.row(i).data(), rows.row(i).size()});
  };
  absl::StatusOr<Verdict> verdict =
      Verify({.rule = session.params->rule}, session.item.draft, row, n, session.params->key);
  if (!verdict.ok()) return verdict.status();
  session.cache.Truncate(n + verdict->accepted);
  session.answer.verdict = std::make_unique<Verdict>(*std::move(verdict));
  return true;
}

std::optional<absl::Status> TargetDecider::OnDeadline(Session& session) {
  if (session.begun) return std::nullopt;
  return absl::DeadlineExceededError("budget_exceeded: not begun within the item's budget");
}

}  // namespace outrider
