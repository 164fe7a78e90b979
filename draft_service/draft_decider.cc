#include "draft_service/draft_decider.h"

namespace outrider {

absl::Status DraftDecider::Begin(Session& session) {
  session.wanted = session.item.draft_tokens > 0 ? 1 : 0;
  return absl::OkStatus();
}

absl::StatusOr<bool> DraftDecider::Decide(Session& session, const LogitsView& rows) {
  const std::span<const TokenId> context = session.cache.tokens();
  absl::StatusOr<WeightRow> row = session.controls->Apply(context, {rows.row(0).data(), rows.row(0).size()});
  if (!row.ok()) return row.status();

  const SequenceParams& params = *session.params;
  const uint64_t position = context.size();
  TokenId token;
  Distribution q;
  if (params.rule == Rule::kCoupled) {
    token = Race(*row, params.key, position);
  } else {
    // q is what is sent, and the token is drawn from what is sent.
    q = TruncateTopN(*row, params.draft_top_n);
    token = DraftSample(q, params.key, position, session.committed);
  }
  Proposal& proposal = session.answer.proposal;
  AppendToChain(token, std::move(q), proposal);
  if (static_cast<int>(proposal.size()) == session.item.draft_tokens) return true;
  session.cache.Append(token);
  return false;
}

// A device drafts all tokens in one go, so that a later budget does not end it halfway.
std::optional<DeviceTask> DraftDecider::Delegate(const Session& session) const {
  const int draft_tokens = session.item.draft_tokens;
  if (!DelegableProposal(*session.params, session.controls->vocab())) return std::nullopt;
  return DeviceTask{.params = session.params.get(),
                    .round_start = static_cast<uint64_t>(session.committed),
                    .work = ProposeTask{.draft_tokens = draft_tokens, .proposal = {}},
                    .status = absl::OkStatus()};
}

void DraftDecider::Conclude(Session& session, DeviceTask& task) {
  session.answer.proposal = std::move(std::get<ProposeTask>(task.work).proposal);
  for (size_t i = 0; i + 1 < session.answer.proposal.size(); ++i) {
    session.cache.Append(session.answer.proposal[i].token);
  }
}

std::optional<absl::Status> DraftDecider::OnDeadline(Session& session) {
  if (session.cache.size() > session.cache.cached()) session.cache.Truncate(session.cache.cached());
  return absl::OkStatus();
}

}  // namespace outrider
