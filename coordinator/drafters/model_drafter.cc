#include "coordinator/drafters/model_drafter.h"

#include <algorithm>

#include "common/rpc/convert.h"
#include "common/spec/status.h"
#include "coordinator/rounds/sequence_update.h"

namespace outrider {
namespace {

// What comes later than the budget and this for the way back is not waited for, so that a draft that hangs
// costs a round this long and no longer.
constexpr auto kWayBack = std::chrono::milliseconds(50);
// Tokens that the draft has not seen need time of their own.
constexpr auto kBudgetPerToken = std::chrono::microseconds(500);
// How long a draft that is full, or did not answer, is left alone.
constexpr auto kPause = std::chrono::milliseconds(500);

// Items that are sent for one proposal.
constexpr int kMaxAttempts = 3;

}  // namespace

void ModelDrafter::Begin(Generation& generation, int k) {
  wanted_ = k;
  attempts_ = 0;
  // Until an item that is in flight is answered, nobody knows what the draft holds.
  if (!in_flight_) Send(generation);
}

bool ModelDrafter::Send(Generation& generation) {
  if (attempts_ == kMaxAttempts || !link_->up() || Clock::now() < not_before_) return false;
  ++attempts_;
  remote_.OnServer(link_->info()->boot_id());
  const size_t n = generation.size();
  const int k = std::min(wanted_, static_cast<int>(link_->info()->max_draft_tokens()));
  const uint64_t round = generation.NextRound();
  v1::DraftItem item;
  v1::ProposeItem* propose = item.mutable_propose();
  FillUpdate(generation, remote_, round, n, propose->mutable_sequence());
  propose->set_draft_tokens(static_cast<uint32_t>(k));
  const Clock::duration allowed = budget_ + kBudgetPerToken * propose->sequence().tokens_size();
  const auto budget = std::chrono::duration_cast<std::chrono::nanoseconds>(allowed);
  propose->mutable_sequence()->mutable_budget()->set_seconds(budget.count() / 1'000'000'000);
  propose->mutable_sequence()->mutable_budget()->set_nanos(static_cast<int>(budget.count() % 1'000'000'000));
  in_flight_.emplace(InFlight{.call = link_->Start(std::move(item), generation.sequence_id(), round),
                              .deadline = Clock::now() + allowed + kWayBack,
                              .n = n,
                              .k = k});
  return true;
}

asio::awaitable<Proposal> ModelDrafter::Take(Generation& generation, v1::ItemTiming* timing) {
  while (in_flight_ || Send(generation)) {
    DraftLink::Answer answer = co_await in_flight_->call->Wait(in_flight_->deadline);
    const size_t n = in_flight_->n;
    const int k = in_flight_->k;
    in_flight_.reset();
    if (!answer.status.ok()) {
      if (OnRefusal(answer)) continue;
      break;
    }
    // What was drafted is in the draft's cache but not committed yet; OnVerdict tells how much of it will be.
    remote_.OnAnswer(answer.result.cached(), n, 0);
    // That was the prompt alone.
    if (k == 0) continue;
    *timing = answer.result.timing();
    absl::StatusOr<Proposal> proposal = Parse(answer.result, k);
    if (proposal.ok()) co_return *std::move(proposal);
    metrics_->OnDraftError(ReasonOf(proposal.status()));
    remote_.Forget();
    break;
  }
  co_return Proposal();
}

absl::StatusOr<Proposal> ModelDrafter::Parse(const v1::ProposeResult& result, int k) const {
  if (result.nodes_size() > k) {
    return MakeError(absl::StatusCode::kInternal, "PROPOSAL_TOO_LONG", "more tokens than were asked for");
  }
  return ParseUncheckedProposal(result.nodes(), static_cast<int>(link_->info()->vocab_size()));
}

bool ModelDrafter::OnRefusal(const DraftLink::Answer& answer) {
  metrics_->OnDraftError(ReasonOf(answer.status));
  const Remedy remedy = remote_.OnRefusal(answer.status, answer.result.cached());
  const bool late = answer.status.code() == absl::StatusCode::kDeadlineExceeded;
  if (remedy == Remedy::kWait || late) not_before_ = Clock::now() + kPause;
  return remedy == Remedy::kResend;
}

void ModelDrafter::Stop(const Generation& generation) {
  if (in_flight_) in_flight_->call->Cancel();
  v1::DraftItem item;
  item.mutable_release()->set_sequence_id(generation.sequence_id());
  link_->Post(std::move(item));
}

}  // namespace outrider
