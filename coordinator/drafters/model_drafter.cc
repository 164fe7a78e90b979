#include "coordinator/drafters/model_drafter.h"

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>

#include "common/rpc/error.h"
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

}  // namespace

v1::DraftItem ModelDrafter::MakeItem(Generation& generation, int k, Clock::duration* allowed) {
  v1::DraftItem item;
  v1::ProposeItem* propose = item.mutable_propose();
  round_ = generation.NextRound();
  FillUpdate(generation, remote_, round_, generation.size(), propose->mutable_sequence());
  propose->set_draft_tokens(static_cast<uint32_t>(k));
  *allowed = budget_ + kBudgetPerToken * propose->sequence().tokens_size();
  const auto budget = std::chrono::duration_cast<std::chrono::nanoseconds>(*allowed);
  propose->mutable_sequence()->mutable_budget()->set_seconds(budget.count() / 1'000'000'000);
  propose->mutable_sequence()->mutable_budget()->set_nanos(static_cast<int>(budget.count() % 1'000'000'000));
  return item;
}

void ModelDrafter::Prepare(Generation& generation) {
  if (!link_->up()) return;
  remote_.OnServer(link_->info()->boot_id());
  Clock::duration allowed{};
  v1::DraftItem item = MakeItem(generation, 0, &allowed);
  preparation_ = std::make_shared<Preparation>(link_->executor());
  preparation_->n = generation.size();
  asio::co_spawn(
      link_->executor(),
      [](std::shared_ptr<DraftLink> link, std::shared_ptr<Preparation> preparation, v1::DraftItem its,
         std::string sequence_id, uint64_t round,
         Clock::time_point deadline) -> asio::awaitable<void> {
        preparation->result = co_await link->Call(std::move(its), std::move(sequence_id), round, deadline);
        preparation->answered.Notify();
      }(link_, preparation_, std::move(item), generation.sequence_id(), round_,
                                     Clock::now() + allowed + kWayBack),
      asio::detached);
}

asio::awaitable<bool> ModelDrafter::FinishPreparation() {
  const std::shared_ptr<Preparation> preparation = std::move(preparation_);
  if (preparation == nullptr) co_return true;
  while (!preparation->result) co_await preparation->answered.Wait();
  const absl::StatusOr<v1::ProposeResult>& result = *preparation->result;
  const absl::Status status = result.ok() ? FromProto(result->status()) : result.status();
  if (status.ok()) {
    remote_.OnAnswer(result->cached(), preparation->n, 0);
    co_return true;
  }
  metrics_->OnDraftError(ReasonOf(status));
  co_return Learn(status, result.ok() ? result->cached() : 0);
}

asio::awaitable<DraftNodes> ModelDrafter::Propose(Generation& generation, int k, v1::ItemTiming* timing) {
  if (!co_await FinishPreparation()) co_return DraftNodes();
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (k <= 0 || !link_->up() || Clock::now() < not_before_) co_return DraftNodes();
    remote_.OnServer(link_->info()->boot_id());
    const size_t n = generation.size();
    k = std::min(k, static_cast<int>(link_->info()->max_draft_tokens()));
    Clock::duration allowed{};
    v1::DraftItem item = MakeItem(generation, k, &allowed);
    absl::StatusOr<v1::ProposeResult> result = co_await link_->Call(
        std::move(item), generation.sequence_id(), round_, Clock::now() + allowed + kWayBack);
    const absl::Status status = result.ok() ? FromProto(result->status()) : result.status();
    if (status.ok()) {
      // What was drafted is in the draft's cache but not committed yet; OnVerdict tells how much of it will
      // be.
      remote_.OnAnswer(result->cached(), n, 0);
      *timing = result->timing();
      if (result->nodes_size() <= k) co_return std::move(*result->mutable_nodes());
      metrics_->OnDraftError("PROPOSAL_TOO_LONG");
      remote_.Lost();
      co_return DraftNodes();
    }
    metrics_->OnDraftError(ReasonOf(status));
    if (!Learn(status, result.ok() ? result->cached() : 0)) co_return DraftNodes();
  }
  co_return DraftNodes();
}

bool ModelDrafter::Learn(const absl::Status& status, size_t cached) {
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition: {
      const std::string reason = ReasonOf(status);
      if (reason == "PARAMS_UNKNOWN") {
        remote_.ParamsUnknown();
      } else if (reason == "PREFIX_MISMATCH") {
        remote_.OnMismatch();
      } else {
        remote_.OnHolds(cached);
      }
      return true;
    }
    case absl::StatusCode::kNotFound:
      remote_.Lost();
      return true;
    case absl::StatusCode::kResourceExhausted:
      remote_.Lost();
      not_before_ = Clock::now() + kPause;
      return false;
    case absl::StatusCode::kDeadlineExceeded:
      not_before_ = Clock::now() + kPause;
      return false;
    default:
      return false;
  }
}

void ModelDrafter::Stop(const Generation& generation) {
  link_->Abort(generation.sequence_id(), round_);
  v1::DraftItem item;
  item.mutable_release()->set_sequence_id(generation.sequence_id());
  link_->Send(std::move(item));
}

}  // namespace outrider
