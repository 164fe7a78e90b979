#include "coordinator/decode/target_client.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/convert.h"
#include "common/rpc/drafters.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

constexpr size_t kMaxItemTokens = 8192;  // tokens in one item; a longer prefix takes several items
constexpr int kMaxFailures = 8;          // more refusals in a row are a defect, not lost state

uint32_t BytesOf(const DraftNodes& nodes) {
  size_t bytes = 0;
  for (const v1::DraftNode& node : nodes) bytes += node.ByteSizeLong();
  return static_cast<uint32_t>(bytes);
}

// The part of an item's time that the target's own proposal took.
uint32_t ProposeMicroseconds(const v1::VerifyResult& result) {
  return std::min(result.propose_us(), result.timing().compute_us());
}

// Converts the target's own proposal, a chain or tree for which the length `asked` was asked.
absl::StatusOr<Proposal> ParseOwnProposal(const DraftNodes& nodes, const DraftLength& asked, v1::Rule rule,
                                          int vocab_size) {
  const auto error = [](absl::string_view reason, absl::string_view message) {
    return MakeError(absl::StatusCode::kInternal, reason, message);
  };
  if (nodes.empty()) return error("PROPOSAL_EMPTY", "no token");
  const Rule its_rule = OUTRIDER_TRY(ParseRule(rule));
  Proposal proposal = OUTRIDER_TRY(ParseUnpreparedProposal(nodes, its_rule, vocab_size));
  if (!asked.tree && !IsChain(proposal)) return error("PROPOSAL_NO_CHAIN", "a tree in place of a chain");
  const int most = asked.tree ? MaxNodes(*asked.tree, asked.most) : asked.most;
  if (Depth(proposal) > asked.most || nodes.size() > most) {
    return error("PROPOSAL_TOO_LONG", "more tokens than were asked for");
  }
  return proposal;
}

}  // namespace

asio::awaitable<absl::StatusOr<TargetAnswer>> TargetClient::Verify(Proposal& proposal,
                                                                   const std::function<void()>* away,
                                                                   const DraftLength* next) {
  round_ = generation_->NextRound();
  while (true) {
    if (Clock::now() < not_before_) co_await wake_.Wait(std::min(deadline_, not_before_));
    if (absl::Status status = co_await WaitForTarget(); !status.ok()) co_return status;
    const std::shared_ptr<TargetLink> link = pin_.server()->link;
    std::optional<TurnQueue::Turn> turn;
    if (losses_.suspect()) {
      turn.emplace(&link->suspects(), &wake_);
      if (absl::Status status = co_await WaitForTurn(*turn, *link); !status.ok()) co_return status;
      if (!link->up()) continue;  // the link went down while others had their turns
    }
    remote_.OnServer(link->info()->boot_id());
    const size_t n = generation_->size();
    // Every token of the prompt must pass through the model once more to be scored.
    if (generation_->WantsPromptLogprobs()) remote_.Forget();
    if (n - remote_.Base(n) > kMaxItemTokens && !generation_->WantsPromptLogprobs()) {
      if (absl::Status status = co_await SendPrefix(); !status.ok()) co_return status;
      // The prefix was a round of its own, and round numbers must increase.
      round_ = generation_->NextRound();
      continue;
    }
    v1::TargetItem item = MakeItem(proposal, next);
    sent_ = n;
    const uint32_t proposal_bytes = generation_->request().trace ? BytesOf(item.verify().draft()) : 0;
    call_ = link->Start(std::move(item), pin_.sequence_id(), round_, /*patient=*/losses_.suspect());
    if (const auto* const now = std::exchange(away, nullptr)) {
      // Lets the item leave first.
      co_await asio::post(link->executor(), asio::use_awaitable);
      if (stopped_) co_return absl::CancelledError("cancelled");
      (*now)();
    }
    TargetLink::Answer answer = co_await call_->Wait(deadline_);
    if (stopped_) co_return absl::CancelledError("cancelled");
    if (answer.status.ok()) {
      absl::StatusOr<TargetAnswer> taken = Take(answer.result, proposal);
      if (taken.ok()) {
        taken->proposal_bytes = proposal_bytes;
        if (next != nullptr) taken->next = TakeProposal(answer.result, *next);
      } else {
        metrics_->OnTargetError(ReasonOf(taken.status()));
      }
      co_return taken;
    }
    const bool had_proposal = !proposal.empty();
    if (absl::Status status = Recover(answer, proposal); !status.ok()) co_return status;
    // An item with other content needs another round number.
    if (had_proposal && proposal.empty()) round_ = generation_->NextRound();
  }
}

absl::StatusOr<TargetAnswer> TargetClient::Take(v1::VerifyResult& result, const Proposal& proposal) {
  TargetAnswer answer;
  if (const int candidates = generation_->request().candidates; candidates > 0) {
    answer.candidates = OUTRIDER_TRY(ParseCandidates(result, proposal.size() + 1, candidates, VocabSize()));
  } else {
    answer.verdict = OUTRIDER_TRY(ParseVerdict(result.verdict(), proposal, VocabSize()));
    OUTRIDER_TRY(CheckLogprobsAndPrefixHit(proposal, answer.verdict, result));
    answer.logprobs = std::move(*result.mutable_verdict()->mutable_logprobs());
    answer.prompt_logprobs = std::move(*result.mutable_prompt_logprobs());
  }
  remote_.OnAnswer(result.cached(), sent_, answer.verdict.path.size());
  losses_.OnAnswer(sent_);
  full_pause_.Reset();
  failures_ = 0;
  answer.prefix_hit = result.prefix_hit();
  answer.timing = result.timing();
  answer.timing.set_compute_us(answer.timing.compute_us() - ProposeMicroseconds(result));
  return answer;
}

absl::Status TargetClient::CheckLogprobsAndPrefixHit(const Proposal& proposal, const Verdict& verdict,
                                                     const v1::VerifyResult& result) const {
  const Request& request = generation_->request();
  std::vector<TokenId> emitted;
  if (request.params.has_logprobs()) {
    for (int node : verdict.path) emitted.push_back(proposal[node].token);
    emitted.push_back(verdict.token);
  }
  std::span<const TokenId> scored;
  if (generation_->WantsPromptLogprobs()) scored = std::span(generation_->tokens()).subspan(1, sent_ - 1);
  const int most = static_cast<int>(request.params.logprobs());
  OUTRIDER_TRY(CheckLogprobs(result.verdict().logprobs(), emitted, most, VocabSize()));
  OUTRIDER_TRY(CheckLogprobs(result.prompt_logprobs(), scored, request.prompt_logprobs, VocabSize()));
  if (result.prefix_hit() <= sent_) return absl::OkStatus();
  return InvalidVerdict(result.prefix_hit(), " of ", sent_, " tokens found in the prefix cache");
}

TargetProposal TargetClient::TakeProposal(const v1::VerifyResult& result, const DraftLength& asked) const {
  TargetProposal taken;
  taken.timing = result.timing();
  taken.timing.set_queue_us(0);
  taken.timing.set_compute_us(ProposeMicroseconds(result));
  if (!CanPropose()) {
    taken.status = DraftStatus::kAway;
    return taken;
  }
  auto nodes =
      ParseOwnProposal(result.verdict().proposal(), asked, generation_->request().params.rule(), VocabSize());
  if (nodes.ok()) {
    taken.nodes = *std::move(nodes);
    return taken;
  }
  taken.status = DraftStatus::kFailed;
  metrics_->OnDraftError(ReasonOf(nodes.status()));
  // An empty proposal means that the target was short of memory, not that something is wrong.
  if (!result.verdict().proposal().empty()) {
    LogWarning("proposal of the target dropped", {{"error", nodes.status().message()}});
  }
  return taken;
}

bool TargetClient::CanPropose() const {
  return FindProposer(*pin_.server()->link->info(), generation_->request().params.proposer()) != nullptr;
}

void TargetClient::FillTokens(size_t end, v1::VerifyItem* verify) const {
  v1::SequenceUpdate* update = verify->mutable_sequence();
  FillUpdate(*generation_, {}, pin_.sequence_id(), remote_, round_, end, update);
  // A target that joined later may lack the proposer, and would refuse the sequence.
  if (update->has_params() && !CanPropose()) update->mutable_params()->clear_proposer();
}

v1::TargetItem TargetClient::MakeItem(const Proposal& proposal, const DraftLength* next) const {
  v1::TargetItem item;
  v1::VerifyItem* verify = item.mutable_verify();
  FillTokens(generation_->size(), verify);
  SerializeProposal(proposal, verify->mutable_draft());
  if (next != nullptr && CanPropose()) {
    verify->mutable_propose()->set_draft_tokens(static_cast<uint32_t>(next->most));
    if (next->tree) *verify->mutable_propose()->mutable_tree() = SerializeShape(*next->tree);
  }
  verify->set_candidates(static_cast<uint32_t>(generation_->request().candidates));
  if (generation_->WantsPromptLogprobs()) {
    verify->set_prompt_logprobs(static_cast<uint32_t>(generation_->request().prompt_logprobs));
  }
  return item;
}

asio::awaitable<absl::Status> TargetClient::WaitForTurn(const TurnQueue::Turn& turn, const TargetLink& link) {
  const Clock::time_point began = Clock::now();
  while (!turn.has_come() && !stopped_) {
    // A target that answers other items will get to this one too.
    const Clock::time_point patience = std::max(began, link.last_answer()) + link.options().patience;
    const Clock::time_point end = std::min(deadline_, patience);
    if (Clock::now() >= end) break;
    co_await wake_.Wait(end);
  }
  co_return turn.has_come() && !stopped_ ? absl::OkStatus() : WaitError();
}

asio::awaitable<absl::Status> TargetClient::WaitForTarget() {
  const Clock::time_point end = std::min(deadline_, Clock::now() + pin_.pool().link_options().patience);
  const auto settle = [&] {
    return pin_.Settle(generation_->sequence_id(), generation_->request().prompt, remote_.fork_of());
  };
  while (!stopped_ && !settle() && Clock::now() < end) co_await pin_.pool().WaitChange(wake_, end);
  co_return !stopped_ && Clock::now() < deadline_ && settle() ? absl::OkStatus() : WaitError();
}

absl::Status TargetClient::WaitError() const {
  if (stopped_) return absl::CancelledError("cancelled");
  if (Clock::now() >= deadline_) return absl::DeadlineExceededError("deadline exceeded");
  return MakeError(absl::StatusCode::kUnavailable, "TARGET_UNAVAILABLE",
                   "no target is reachable; resume_from continues this answer");
}

asio::awaitable<absl::Status> TargetClient::SendPrefix() {
  const size_t end = remote_.Base(generation_->size()) + kMaxItemTokens;
  round_ = generation_->NextRound();
  v1::TargetItem item;
  FillTokens(end, item.mutable_verify());
  item.mutable_verify()->set_append_only(true);
  sent_ = end;
  call_ = pin_.server()->link->Start(std::move(item), pin_.sequence_id(), round_,
                                     /*patient=*/losses_.suspect());
  const TargetLink::Answer answer = co_await call_->Wait(deadline_);
  if (answer.status.ok()) {
    remote_.OnAnswer(answer.result.cached(), end, 0);
    losses_.OnAnswer(end);
    full_pause_.Reset();
    co_return absl::OkStatus();
  }
  Proposal none;
  co_return Recover(answer, none);
}

absl::Status TargetClient::Recover(const TargetLink::Answer& answer, Proposal& proposal) {
  const absl::Status& status = answer.status;
  if (stopped_) return absl::CancelledError("cancelled");
  if (status.code() == absl::StatusCode::kDeadlineExceeded && Clock::now() >= deadline_) {
    return absl::DeadlineExceededError("deadline exceeded");
  }
  metrics_->OnTargetError(ReasonOf(status));
  if (answer.lost) {
    losses_.OnLost(sent_);
    if (!losses_.must_give_up()) return absl::OkStatus();
    metrics_->OnTargetError("ITEM_LOST");
    return MakeError(
        absl::StatusCode::kInternal, "ITEM_LOST",
        "three times in a row the connection to a target was lost under an item of this request, or "
        "no answer came; it is not sent again");
  }
  // The link was down already, or the server is going down; WaitForTarget comes next.
  if (status.code() == absl::StatusCode::kUnavailable) return absl::OkStatus();
  losses_.OnAnswer(sent_);
  switch (remote_.OnRefusal(status, answer.result.cached())) {
    case Remedy::kWait:
      // The target has no room now. It may have preempted the sequence, because others need its blocks.
      not_before_ = Clock::now() + full_pause_.Next(RetryAfter(status));
      return absl::OkStatus();
    case Remedy::kResend:
      break;
    case Remedy::kNone:
      // A bad proposal is the drafter's fault, not the client's.
      if (status.code() != absl::StatusCode::kInvalidArgument || proposal.empty()) return status;
      LogWarning("draft refused by the target", {{"error", status.message()}});
      proposal.clear();
  }
  if (++failures_ > kMaxFailures) {
    return absl::InternalError(absl::StrCat("the target keeps refusing: ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace outrider
