#include "coordinator/rounds/target_client.h"

#include <asio/this_coro.hpp>

#include "common/rpc/convert.h"
#include "common/spec/status.h"
#include "coordinator/rounds/sequence_update.h"

namespace outrider {
namespace {

// How long a target may be away before the client is told.
constexpr auto kTargetWait = std::chrono::seconds(60);
// Tokens in one item; longer prefixes take several.
constexpr size_t kMaxItemTokens = 8192;
// A full target is asked again after this.
constexpr auto kFullPause = std::chrono::milliseconds(20);
// To be refused this often in a row is a defect, not a loss.
constexpr int kMaxFailures = 8;

uint32_t BytesOf(const google::protobuf::RepeatedPtrField<v1::DraftNode>& nodes) {
  size_t bytes = 0;
  for (const v1::DraftNode& node : nodes) bytes += node.ByteSizeLong();
  return static_cast<uint32_t>(bytes);
}

}  // namespace

asio::awaitable<absl::StatusOr<TargetAnswer>> TargetClient::Verify(Generation& generation, Proposal& proposal,
                                                                   Clock::time_point deadline) {
  round_ = generation.NextRound();
  while (true) {
    if (absl::Status status = co_await WaitForTarget(deadline); !status.ok()) co_return status;
    remote_.OnServer(link_->info()->boot_id());
    const size_t n = generation.size();
    // Every token of the prompt must pass through the model once more to be scored.
    if (generation.WantsPromptLogprobs()) remote_.Forget();
    if (n - remote_.Base(n) > kMaxItemTokens && !generation.WantsPromptLogprobs()) {
      if (absl::Status status = co_await SendPrefix(generation, deadline); !status.ok()) co_return status;
      // That was a round of its own, and rounds only go up.
      round_ = generation.NextRound();
      continue;
    }
    v1::TargetItem item = MakeItem(generation, proposal);
    const uint32_t proposal_bytes = generation.request().trace ? BytesOf(item.verify().draft()) : 0;
    call_ = link_->Start(std::move(item), generation.sequence_id(), round_);
    TargetLink::Answer answer = co_await call_->Wait(deadline);
    if (stopped_) co_return absl::CancelledError("cancelled");
    if (answer.status.ok()) {
      absl::StatusOr<Verdict> verdict =
          ParseVerdict(answer.result.verdict(), proposal, static_cast<int>(link_->info()->vocab_size()));
      if (!verdict.ok()) co_return verdict.status();
      remote_.OnAnswer(answer.result.cached(), n, verdict->path.size());
      failures_ = 0;
      co_return TargetAnswer{.verdict = *std::move(verdict),
                             .proposal_bytes = proposal_bytes,
                             .prefix_hit = answer.result.prefix_hit(),
                             .logprobs = std::move(*answer.result.mutable_verdict()->mutable_logprobs()),
                             .prompt_logprobs = std::move(*answer.result.mutable_prompt_logprobs()),
                             .timing = std::move(*answer.result.mutable_timing())};
    }
    const bool had_proposal = !proposal.empty();
    if (auto status = co_await Recover(answer, proposal, deadline); !status.ok()) co_return status;
    // Another content needs another round.
    if (had_proposal && proposal.empty()) round_ = generation.NextRound();
  }
}

v1::TargetItem TargetClient::MakeItem(const Generation& generation, const Proposal& proposal) const {
  v1::TargetItem item;
  v1::VerifyItem* verify = item.mutable_verify();
  FillUpdate(generation, remote_, round_, generation.size(), verify->mutable_sequence());
  SerializeProposal(proposal, verify->mutable_draft());
  if (generation.WantsPromptLogprobs()) {
    verify->set_prompt_logprobs(static_cast<uint32_t>(generation.request().prompt_logprobs));
  }
  return item;
}

asio::awaitable<absl::Status> TargetClient::WaitForTarget(Clock::time_point deadline) {
  if (stopped_) co_return absl::CancelledError("cancelled");
  const Clock::time_point end = std::min(deadline, Clock::now() + kTargetWait);
  if (co_await link_->WaitUp(end)) co_return absl::OkStatus();
  if (stopped_) co_return absl::CancelledError("cancelled");
  if (Clock::now() >= deadline) co_return absl::DeadlineExceededError("deadline exceeded");
  co_return MakeError(absl::StatusCode::kUnavailable, "TARGET_UNAVAILABLE",
                      "the target is not reachable; resume_from continues this answer");
}

asio::awaitable<absl::Status> TargetClient::SendPrefix(Generation& generation, Clock::time_point deadline) {
  const size_t end = remote_.Base(generation.size()) + kMaxItemTokens;
  round_ = generation.NextRound();
  v1::TargetItem item;
  FillUpdate(generation, remote_, round_, end, item.mutable_verify()->mutable_sequence());
  item.mutable_verify()->set_append_only(true);
  call_ = link_->Start(std::move(item), generation.sequence_id(), round_);
  const TargetLink::Answer answer = co_await call_->Wait(deadline);
  if (answer.status.ok()) {
    remote_.OnAnswer(answer.result.cached(), end, 0);
    co_return absl::OkStatus();
  }
  Proposal none;
  co_return co_await Recover(answer, none, deadline);
}

asio::awaitable<absl::Status> TargetClient::Recover(const TargetLink::Answer& answer, Proposal& proposal,
                                                    Clock::time_point deadline) {
  const absl::Status& status = answer.status;
  if (stopped_) co_return absl::CancelledError("cancelled");
  if (status.code() == absl::StatusCode::kDeadlineExceeded && Clock::now() >= deadline) {
    co_return absl::DeadlineExceededError("deadline exceeded");
  }
  metrics_->OnTargetError(ReasonOf(status));
  // The link is down, or the server is going down; WaitForTarget comes next.
  if (status.code() == absl::StatusCode::kUnavailable) co_return absl::OkStatus();
  switch (remote_.OnRefusal(status, answer.result.cached())) {
    case Remedy::kWait: {
      // Preempted: others need the room for a while.
      Event pause(co_await asio::this_coro::executor);
      co_await pause.Wait(std::min(deadline, Clock::now() + kFullPause));
      co_return absl::OkStatus();
    }
    case Remedy::kResend:
      break;
    case Remedy::kNone:
      // A bad proposal is the drafter's fault, not the client's.
      if (status.code() != absl::StatusCode::kInvalidArgument || proposal.empty()) co_return status;
      LogWarning("draft refused by the target", {{"error", std::string(status.message())}});
      proposal.clear();
  }
  if (++failures_ > kMaxFailures) {
    co_return absl::InternalError(absl::StrCat("the target keeps refusing: ", std::string(status.message())));
  }
  co_return absl::OkStatus();
}

void TargetClient::Stop(const Generation& generation) {
  stopped_ = true;
  if (call_ != nullptr) call_->Cancel();
  v1::TargetItem item;
  item.mutable_release()->set_sequence_id(generation.sequence_id());
  link_->Post(std::move(item));
}

}  // namespace outrider
