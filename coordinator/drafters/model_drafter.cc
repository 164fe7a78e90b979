#include "coordinator/drafters/model_drafter.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "common/rpc/convert.h"
#include "common/rpc/sampling.h"
#include "common/spec/status.h"
#include "coordinator/drafters/fit_vocabulary.h"
#include "coordinator/rounds/sequence_update.h"

namespace outrider {
namespace {

// What comes later than the budget and this for the way back is not waited for, so that a draft that hangs
// costs a round this long and no longer.
constexpr auto kWayBack = std::chrono::milliseconds(50);
// Tokens that the draft has not seen need time of their own.
constexpr auto kBudgetPerToken = std::chrono::microseconds(500);

// Items that are sent for one proposal.
constexpr int kMaxAttempts = 3;

// K that the draft can give after n tokens, of `wanted`; negative if the sequence fills its context.
int Allowed(const v1::ServerInfo& draft, size_t n, int wanted) {
  const auto room = static_cast<int64_t>(draft.max_context()) - static_cast<int64_t>(n);
  if (room <= 0) return -1;
  return static_cast<int>(std::min({int64_t{wanted}, room, int64_t{draft.max_draft_tokens()}}));
}

void SetBudget(Clock::duration allowed, google::protobuf::Duration* budget) {
  const int64_t nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(allowed).count();
  budget->set_seconds(nanoseconds / 1'000'000'000);
  budget->set_nanos(static_cast<int>(nanoseconds % 1'000'000'000));
}

}  // namespace

void ModelDrafter::Begin(Generation& generation, const DraftLength& length) {
  wanted_ = length;
  attempts_ = 0;
  outcome_ = DraftOutcome::kUsable;
  // Until an item that is in flight is answered, nobody knows what the draft holds.
  if (!in_flight_) Send(generation);
}

bool ModelDrafter::Send(Generation& generation) {
  if (attempts_ == kMaxAttempts) return false;
  const size_t n = generation.size();
  const int wanted = wanted_.most;
  const int k = link_->info() == nullptr ? wanted : Allowed(*link_->info(), n, wanted);
  if (k < 0 || (k == 0 && wanted > 0)) return false;
  if (link_->info() != nullptr && link_->info()->vocab_size() == unfit_vocab_) return false;
  std::optional<InFlight> item = Prepare();
  if (!item) return false;
  const v1::ServerInfo& draft = *link_->info();
  ++attempts_;
  remote_.OnServer(draft.boot_id());
  const uint64_t round = generation.NextRound();
  v1::DraftItem message;
  v1::ProposeItem* propose = message.mutable_propose();
  FillUpdate(generation, remote_, round, n, propose->mutable_sequence());
  const int draft_vocab = static_cast<int>(draft.vocab_size());
  if (draft_vocab != vocab_ && !FitVocabulary(draft_vocab, vocab_, *propose->mutable_sequence())) {
    // Nor will it be able to later: committed tokens stay.
    unfit_vocab_ = draft.vocab_size();
    return false;
  }
  propose->set_draft_tokens(static_cast<uint32_t>(k));
  if (wanted_.stop) {
    v1::DraftStop* stop = propose->mutable_stop();
    stop->mutable_acceptance()->Add(wanted_.stop->acceptance.begin(), wanted_.stop->acceptance.end());
    stop->set_least(wanted_.stop->least);
  }
  const Clock::duration allowed = budget_ + kBudgetPerToken * propose->sequence().tokens_size();
  SetBudget(allowed, propose->mutable_sequence()->mutable_budget());
  item->call = link_->Start(std::move(message), generation.sequence_id(), round);
  item->deadline = Clock::now() + allowed + kWayBack;
  item->n = n;
  item->k = k;
  in_flight_ = std::move(item);
  return true;
}

std::optional<ModelDrafter::InFlight> ModelDrafter::Prepare() {
  const Clock::time_point now = Clock::now();
  // Neither is the draft's failure: it is this sequence that is not drafted for.
  if (losses_.guilty() || now < not_before_) return std::nullopt;
  InFlight item;
  if (link_->up()) {
    breaker_->OnConnection(link_->connections());
    // A suspect does without a draft for as long as another is on its way.
    if (!losses_.suspect()) {
      item.permit = breaker_->TryPass(now);
    } else if (link_->suspects().size() == 0) {
      item.permit = breaker_->TryPass(now);
      item.turn = std::make_unique<TurnQueue::Turn>(&link_->suspects());
    }
  }
  if (item.permit == nullptr) {
    // A failure in this round is worse news.
    if (outcome_ != DraftOutcome::kFailed) outcome_ = DraftOutcome::kAway;
    return std::nullopt;
  }
  return item;
}

asio::awaitable<Proposal> ModelDrafter::Take(Generation& generation, v1::ItemTiming* timing) {
  while (in_flight_ || Send(generation)) {
    DraftLink::Answer answer = co_await in_flight_->call->Wait(in_flight_->deadline);
    const InFlight item = *std::exchange(in_flight_, std::nullopt);
    if (!answer.status.ok()) {
      outcome_ = DraftOutcome::kFailed;
      if (OnRefusal(generation, item, answer)) continue;
      break;
    }
    // What was drafted is in the draft's cache but not committed yet; OnVerdict tells how much of it will be.
    remote_.OnAnswer(answer.result.cached(), item.n, 0);
    losses_.OnAnswer(item.n);
    if (answer.result.cached() < item.n && answer.result.nodes_size() > 0) {
      // The draft was short of blocks and has dropped the sequence. To feed it again at once would take them
      // from others.
      not_before_ = Clock::now() + full_pause_.Next();
    } else {
      full_pause_.Reset();
    }
    // That was the prompt alone.
    if (item.k == 0) {
      item.permit->Succeed();
      continue;
    }
    *timing = answer.result.timing();
    absl::StatusOr<Proposal> proposal = Parse(generation, answer.result, item.k);
    if (proposal.ok()) {
      item.permit->Succeed();
      outcome_ = DraftOutcome::kUsable;
      co_return *std::move(proposal);
    }
    item.permit->Fail(Clock::now());
    outcome_ = DraftOutcome::kFailed;
    metrics_->OnDraftError(ReasonOf(proposal.status()));
    // An empty proposal is late, not wrong.
    if (answer.result.nodes_size() > 0) remote_.Forget();
    break;
  }
  co_return Proposal();
}

absl::StatusOr<Proposal> ModelDrafter::Parse(const Generation& generation, const v1::ProposeResult& result,
                                             int k) const {
  if (result.nodes().empty()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, "PROPOSAL_EMPTY", "no token in time");
  }
  if (result.nodes_size() > k) {
    return MakeError(absl::StatusCode::kInternal, "PROPOSAL_TOO_LONG", "more tokens than were asked for");
  }
  const absl::StatusOr<Rule> rule = ParseRule(generation.request().params.rule());
  if (!rule.ok()) return rule.status();
  auto proposal = ParseUnpreparedProposal(result.nodes(), *rule, vocab_);
  if (proposal.ok() && result.confidence_size() == result.nodes_size()) {
    for (int i = 0; i < result.confidence_size(); ++i) {
      (*proposal)[static_cast<size_t>(i)].confidence = result.confidence(i);
    }
  }
  return proposal;
}

bool ModelDrafter::OnRefusal(const Generation& generation, const InFlight& item,
                             const DraftLink::Answer& answer) {
  if (answer.status.code() == absl::StatusCode::kCancelled) return false;
  metrics_->OnDraftError(ReasonOf(answer.status));
  const Clock::time_point now = Clock::now();
  const Remedy remedy = remote_.OnRefusal(answer.status, answer.result.cached());
  // A draft that has lost a sequence, or has no room for one, does what it should.
  if (remedy == Remedy::kNone) {
    item.permit->Fail(now);
  } else {
    item.permit->Succeed();
  }
  if (answer.lost) {
    losses_.OnLost(item.n);
    if (losses_.guilty()) GiveUp(generation);
  } else if (answer.status.code() != absl::StatusCode::kDeadlineExceeded) {
    losses_.OnAnswer(item.n);
  }
  if (remedy == Remedy::kWait) not_before_ = now + full_pause_.Next(RetryAfter(answer.status));
  return remedy == Remedy::kResend;
}

void ModelDrafter::GiveUp(const Generation& generation) {
  metrics_->OnDraftError("ITEM_LOST");
  LogWarning("draft given up for a request", {{"request_id", generation.request().context.request_id()},
                                              {"sequence", absl::BytesToHexString(generation.sequence_id())},
                                              {"tokens", static_cast<int64_t>(generation.size())}});
}

void ModelDrafter::Stop(const Generation& generation) {
  if (in_flight_) in_flight_->call->Cancel();
  v1::DraftItem item;
  item.mutable_release()->set_sequence_id(generation.sequence_id());
  link_->Post(std::move(item));
}

}  // namespace outrider
