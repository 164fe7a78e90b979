#include "coordinator/beams/beam_sequence.h"

#include <utility>

namespace outrider {

BeamSequence::BeamSequence(const BeamParts& parts, const Request& request, std::span<const TokenId> tokens,
                           Clock::time_point received, const Fork& fork)
    : policy_(parts.policy),
      generation_(request, parts.tokenizer, received),
      drafter_(
          MakeDrafter(request, parts.drafters, static_cast<int>(parts.targets->info()->vocab_size()), fork)),
      target_(parts.targets, parts.metrics, fork) {
  generation_.Follow(tokens);
  policy_->Begin();
}

BeamSequence::~BeamSequence() {
  Stop();
  policy_->End();
}

asio::awaitable<absl::Status> BeamSequence::Look(DraftLength length, Clock::time_point deadline) {
  if (stopped_) co_return absl::CancelledError("cancelled");
  proposal_.clear();
  if (length.most > 0) {
    v1::ItemTiming ignored;
    drafter_->Begin(generation_, length);
    proposal_ = co_await drafter_->Take(generation_, &ignored);
  }
  absl::StatusOr<TargetAnswer> answer = co_await target_.Verify(generation_, proposal_, deadline);
  if (!answer.ok()) co_return answer.status();
  answer_ = *std::move(answer);
  co_return absl::OkStatus();
}

void BeamSequence::Follow(std::span<const TokenId> tokens) {
  const size_t n = generation_.size();
  Verdict followed;
  followed.path = PathAlong(proposal_, tokens);
  drafter_->OnVerdict(n, followed);
  target_.OnFollowed(n, followed.path.size());
  generation_.Follow(tokens);
}

void BeamSequence::Stop() {
  if (std::exchange(stopped_, true)) return;
  drafter_->Stop(generation_);
  target_.Stop();
}

}  // namespace outrider
