#include "coordinator/rounds/target_client.h"

#include <optional>
#include <utility>

#include "common/rpc/convert.h"
#include "common/spec/status.h"
#include "coordinator/rounds/sequence_update.h"

namespace outrider {
namespace {

// Tokens in one item; longer prefixes take several.
constexpr size_t kMaxItemTokens = 8192;
// To be refused this often in a row is a defect, not a loss.
constexpr int kMaxFailures = 8;

uint32_t BytesOf(const google::protobuf::RepeatedPtrField<v1::DraftNode>& nodes) {
  size_t bytes = 0;
  for (const v1::DraftNode& node : nodes) bytes += node.ByteSizeLong();
  return static_cast<uint32_t>(bytes);
}

}  // namespace

asio::awaitable<absl::StatusOr<TargetAnswer>> TargetClient::Verify(Generation& generation, Proposal& proposal,
                                                                   Clock::time_point deadline,
                                                                   const WhileAway* away) {
  const bool may_continue = away != nullptr && away->may_continue;
  round_ = generation.NextRound();
  while (true) {
    if (Clock::now() < not_before_) co_await wake_.Wait(std::min(deadline, not_before_));
    if (absl::Status status = co_await WaitForTarget(generation, deadline); !status.ok()) co_return status;
    const std::shared_ptr<TargetLink> link = pin_.server()->link;
    std::optional<TurnQueue::Turn> turn;
    if (losses_.suspect()) {
      turn.emplace(&link->suspects(), &wake_);
      if (absl::Status status = co_await WaitForTurn(*turn, *link, deadline); !status.ok()) co_return status;
      if (!link->up()) continue;  // it went while others had their turns
    }
    remote_.OnServer(link->info()->boot_id());
    const size_t n = generation.size();
    // Every token of the prompt must pass through the model once more to be scored.
    if (generation.WantsPromptLogprobs()) remote_.Forget();
    if (n - remote_.Base(n) > kMaxItemTokens && !generation.WantsPromptLogprobs()) {
      if (absl::Status status = co_await SendPrefix(generation, deadline); !status.ok()) co_return status;
      // That was a round of its own, and rounds only go up.
      round_ = generation.NextRound();
      continue;
    }
    v1::TargetItem item = MakeItem(generation, proposal, may_continue);
    sent_ = n;
    const uint32_t proposal_bytes = generation.request().trace ? BytesOf(item.verify().draft()) : 0;
    call_ = link->Start(std::move(item), pin_.sequence_id(), round_, /*patient=*/losses_.suspect());
    if (const WhileAway* const now = std::exchange(away, nullptr)) {
      // The item leaves first.
      co_await asio::post(link->executor(), asio::use_awaitable);
      if (stopped_) co_return absl::CancelledError("cancelled");
      continuable_ = may_continue;
      now->run();
    }
    TargetLink::Answer answer = co_await call_->Wait(deadline);
    continuable_ = false;
    if (stopped_) co_return absl::CancelledError("cancelled");
    if (answer.status.ok()) {
      absl::StatusOr<TargetAnswer> taken = Take(generation, std::move(answer.result), proposal);
      if (taken.ok()) {
        taken->proposal_bytes = proposal_bytes;
      } else {
        metrics_->OnTargetError(ReasonOf(taken.status()));
      }
      co_return taken;
    }
    const bool had_proposal = !proposal.empty();
    if (absl::Status status = Recover(answer, proposal, deadline); !status.ok()) co_return status;
    // Another content needs another round.
    if (had_proposal && proposal.empty()) round_ = generation.NextRound();
  }
}

absl::StatusOr<TargetAnswer> TargetClient::Take(const Generation& generation, v1::VerifyResult result,
                                                const Proposal& proposal) {
  if (generation.request().candidates > 0) return TakeCandidates(generation, result, proposal);
  absl::StatusOr<Verdict> verdict =
      ParseVerdict(result.verdict(), proposal, static_cast<int>(pin_.pool().info()->vocab_size()));
  if (!verdict.ok()) return verdict.status();
  if (absl::Status status = CheckReport(generation, result); !status.ok()) return status;
  OnAnswered(result, verdict->path.size());
  return TargetAnswer{.verdict = *std::move(verdict),
                      .candidates = {},
                      .prefix_hit = result.prefix_hit(),
                      .logprobs = std::move(*result.mutable_verdict()->mutable_logprobs()),
                      .prompt_logprobs = std::move(*result.mutable_prompt_logprobs()),
                      .timing = std::move(*result.mutable_timing())};
}

absl::StatusOr<TargetAnswer> TargetClient::TakeCandidates(const Generation& generation,
                                                          const v1::VerifyResult& result,
                                                          const Proposal& proposal) {
  const int vocab = static_cast<int>(pin_.pool().info()->vocab_size());
  auto rows = ParseCandidates(result, proposal.size() + 1, generation.request().candidates, vocab);
  if (!rows.ok()) return rows.status();
  OnAnswered(result, 0);
  TargetAnswer answer;
  answer.candidates = *std::move(rows);
  answer.prefix_hit = result.prefix_hit();
  return answer;
}

void TargetClient::OnAnswered(const v1::VerifyResult& result, size_t accepted) {
  remote_.OnAnswer(result.cached(), sent_, accepted);
  losses_.OnAnswer(sent_);
  full_pause_.Reset();
  failures_ = 0;
}

absl::Status TargetClient::CheckReport(const Generation& generation, const v1::VerifyResult& result) const {
  const v1::Verdict& verdict = result.verdict();
  const bool wants = generation.request().params.has_logprobs();
  const auto size = [](const auto& positions) { return static_cast<size_t>(positions.size()); };
  if (size(verdict.logprobs()) != (wants ? size(verdict.accepted()) + 1 : 0)) {
    return InvalidVerdict(absl::StrCat("log-probabilities of ", verdict.logprobs_size(), " tokens"));
  }
  if (size(result.prompt_logprobs()) != (generation.WantsPromptLogprobs() ? sent_ - 1 : 0)) {
    return InvalidVerdict(
        absl::StrCat("log-probabilities of ", result.prompt_logprobs_size(), " prompt tokens"));
  }
  if (result.prefix_hit() > sent_) {
    return InvalidVerdict(
        absl::StrCat(result.prefix_hit(), " of ", sent_, " tokens found in the prefix cache"));
  }
  return absl::OkStatus();
}

void TargetClient::Continue(const ProposalNode& node) {
  if (!continuable_) return;
  google::protobuf::RepeatedPtrField<v1::DraftNode> nodes;
  SerializeProposal({&node, 1}, &nodes);
  v1::TargetItem item;
  item.mutable_continuation()->set_sequence_id(pin_.sequence_id());
  item.mutable_continuation()->set_round(round_);
  *item.mutable_continuation()->mutable_node() = std::move(nodes[0]);
  pin_.server()->link->Post(std::move(item));
}

v1::TargetItem TargetClient::MakeItem(const Generation& generation, const Proposal& proposal,
                                      bool may_continue) const {
  v1::TargetItem item;
  v1::VerifyItem* verify = item.mutable_verify();
  FillUpdate(generation, pin_.sequence_id(), remote_, round_, generation.size(), verify->mutable_sequence());
  SerializeProposal(proposal, verify->mutable_draft());
  verify->set_may_continue(may_continue && !proposal.empty());
  verify->set_candidates(static_cast<uint32_t>(generation.request().candidates));
  if (generation.WantsPromptLogprobs()) {
    verify->set_prompt_logprobs(static_cast<uint32_t>(generation.request().prompt_logprobs));
  }
  return item;
}

asio::awaitable<absl::Status> TargetClient::WaitForTurn(const TurnQueue::Turn& turn, const TargetLink& link,
                                                        Clock::time_point deadline) {
  const Clock::time_point began = Clock::now();
  while (!turn.has_come() && !stopped_) {
    // A target that answers others comes to this one too.
    const Clock::time_point patience = std::max(began, link.last_answer()) + link.options().patience;
    const Clock::time_point end = std::min(deadline, patience);
    if (Clock::now() >= end) break;
    co_await wake_.Wait(end);
  }
  co_return turn.has_come() && !stopped_ ? absl::OkStatus() : GaveUp(deadline);
}

asio::awaitable<absl::Status> TargetClient::WaitForTarget(const Generation& generation,
                                                          Clock::time_point deadline) {
  const Clock::time_point end = std::min(deadline, Clock::now() + pin_.pool().link_options().patience);
  const auto settle = [&] {
    return pin_.Settle(generation.sequence_id(), generation.request().prompt, remote_.fork_of());
  };
  while (!stopped_ && !settle() && Clock::now() < end) co_await pin_.pool().WaitChange(wake_, end);
  co_return !stopped_ && Clock::now() < deadline && settle() ? absl::OkStatus() : GaveUp(deadline);
}

absl::Status TargetClient::GaveUp(Clock::time_point deadline) const {
  if (stopped_) return absl::CancelledError("cancelled");
  if (Clock::now() >= deadline) return absl::DeadlineExceededError("deadline exceeded");
  return MakeError(absl::StatusCode::kUnavailable, "TARGET_UNAVAILABLE",
                   "no target is reachable; resume_from continues this answer");
}

asio::awaitable<absl::Status> TargetClient::SendPrefix(Generation& generation, Clock::time_point deadline) {
  const size_t end = remote_.Base(generation.size()) + kMaxItemTokens;
  round_ = generation.NextRound();
  v1::TargetItem item;
  FillUpdate(generation, pin_.sequence_id(), remote_, round_, end, item.mutable_verify()->mutable_sequence());
  item.mutable_verify()->set_append_only(true);
  sent_ = end;
  call_ = pin_.server()->link->Start(std::move(item), pin_.sequence_id(), round_,
                                     /*patient=*/losses_.suspect());
  const TargetLink::Answer answer = co_await call_->Wait(deadline);
  if (answer.status.ok()) {
    remote_.OnAnswer(answer.result.cached(), end, 0);
    losses_.OnAnswer(end);
    full_pause_.Reset();
    co_return absl::OkStatus();
  }
  Proposal none;
  co_return Recover(answer, none, deadline);
}

absl::Status TargetClient::Recover(const TargetLink::Answer& answer, Proposal& proposal,
                                   Clock::time_point deadline) {
  const absl::Status& status = answer.status;
  if (stopped_) return absl::CancelledError("cancelled");
  if (status.code() == absl::StatusCode::kDeadlineExceeded && Clock::now() >= deadline) {
    return absl::DeadlineExceededError("deadline exceeded");
  }
  metrics_->OnTargetError(ReasonOf(status));
  if (answer.lost) return OnLost();
  // The link was down already, or the server is going down; WaitForTarget comes next.
  if (status.code() == absl::StatusCode::kUnavailable) return absl::OkStatus();
  losses_.OnAnswer(sent_);
  switch (remote_.OnRefusal(status, answer.result.cached())) {
    case Remedy::kWait:
      // Preempted: others need the room for a while.
      not_before_ = Clock::now() + full_pause_.Next(RetryAfter(status));
      return absl::OkStatus();
    case Remedy::kResend:
      break;
    case Remedy::kNone:
      // A bad proposal is the drafter's fault, not the client's.
      if (status.code() != absl::StatusCode::kInvalidArgument || proposal.empty()) return status;
      LogWarning("draft refused by the target", {{"error", std::string(status.message())}});
      proposal.clear();
  }
  if (++failures_ > kMaxFailures) {
    return absl::InternalError(absl::StrCat("the target keeps refusing: ", std::string(status.message())));
  }
  return absl::OkStatus();
}

absl::Status TargetClient::OnLost() {
  losses_.OnLost(sent_);
  if (!losses_.guilty()) return absl::OkStatus();
  metrics_->OnTargetError("ITEM_LOST");
  return MakeError(absl::StatusCode::kInternal, "ITEM_LOST",
                   "the connection to a target was lost three times in a row under an item of this request, "
                   "which is not sent again");
}

void TargetClient::Stop() {
  stopped_ = true;
  wake_.Notify();
  if (call_ != nullptr) call_->Cancel();
  pin_.Release();
}

}  // namespace outrider
