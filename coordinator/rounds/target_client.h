// Asks the target for verdicts, and sends again whatever the target has lost.
#pragma once

#include <memory>

#include "coordinator/link/link.h"
#include "coordinator/rounds/generation.h"
#include "coordinator/rounds/metrics.h"
#include "coordinator/rounds/remote_sequence.h"

namespace outrider {

// One for each generation. Executor thread.
class TargetClient {
 public:
  TargetClient(std::shared_ptr<TargetLink> link, Metrics* metrics, Fork fork)
      : link_(std::move(link)), metrics_(metrics), remote_(std::move(fork)) {}

  // A decision over `draft`, which is emptied if the target cannot take it: then the round is plain. A target
  // that is away is waited for, up to a minute. Errors are for the client: UNAVAILABLE when the target stays
  // away, CANCELLED after Stop, DEADLINE_EXCEEDED at `deadline`, INTERNAL when the model yields no
  // distribution.
  asio::awaitable<absl::StatusOr<v1::VerifyResult>> Verify(Generation& generation, DraftNodes& draft,
                                                           Clock::time_point deadline);

  // The generation is over, or its client gone: nothing is computed for it any more. Ends a Verify in
  // progress.
  void Stop(const Generation& generation);

 private:
  // Sends the prefix of a long sequence in pieces, so that others get their turn in between.
  asio::awaitable<absl::Status> SendPrefix(Generation& generation, Clock::time_point deadline);
  // Sends an item of round_, and waits for its answer.
  asio::awaitable<TargetLink::Answer> Ask(v1::TargetItem item, const std::string& sequence_id,
                                          Clock::time_point deadline);
  // Corrects what is believed of the target. OK if the item is worth sending again.
  asio::awaitable<absl::Status> Recover(const absl::Status& status, size_t cached, DraftNodes& draft,
                                        Clock::time_point deadline);
  asio::awaitable<absl::Status> WaitForTarget(Clock::time_point deadline);

  const std::shared_ptr<TargetLink> link_;
  Metrics* const metrics_;
  RemoteSequence remote_;
  uint64_t round_ = 0;
  std::unique_ptr<TargetLink::Call> call_;  // in flight
  int failures_ = 0;                        // in a row, of a kind that should not repeat
  bool stopped_ = false;
};

}  // namespace outrider
