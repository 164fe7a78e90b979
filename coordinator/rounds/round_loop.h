// The loop that everything else serves: propose, verify, commit, send.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/asio.h"
#include "coordinator/rounds/draft_length_policy.h"
#include "coordinator/rounds/drafter.h"
#include "coordinator/rounds/generation.h"
#include "coordinator/rounds/round_observer.h"
#include "coordinator/rounds/target_client.h"

namespace outrider {

// Takes one generation to its end. An error ends it early; what was sent until
// then stands. Executor thread.
class RoundLoop {
 public:
  // Sends a chunk to the client. Returns when there is room for more; an error
  // when nobody reads any more.
  using SendChunk = std::function<asio::awaitable<absl::Status>(v1::GenerateResponse)>;

  // What it is given outlives it.
  RoundLoop(Generation* generation, Drafter* drafter, TargetClient* target, DraftLengthPolicy* policy,
            RoundObserver* observer, SendChunk send, Clock::time_point deadline)
      : generation_(generation),
        drafter_(drafter),
        target_(target),
        policy_(policy),
        observer_(observer),
        send_(std::move(send)),
        deadline_(deadline) {}

  // First this: the round in which the servers compute the prompt.
  asio::awaitable<absl::Status> ComputePrompt();
  // Then this: the rounds that follow, until the generation is over.
  asio::awaitable<absl::Status> Decode();

 private:
  asio::awaitable<absl::Status> Round();
  // What is drafted in this round, and what the target is asked for in it for the next.
  DraftLength Choose();
  DraftLength ChooseNext();
  // While `proposal` is verified: has the draft work on what may come of it.
  void RunAhead(const Proposal& proposal);
  // Sends the beginning of what was asked for of the prompt in chunks of its own. Returns how many positions
  // it has sent; the rest goes with the first token.
  asio::awaitable<absl::StatusOr<int>> SendPromptLogprobs(const Generation::Logprobs& prompt);

  Generation* const generation_;
  Drafter* const drafter_;
  TargetClient* const target_;
  DraftLengthPolicy* const policy_;
  RoundObserver* const observer_;
  const SendChunk send_;
  const Clock::time_point deadline_;
  // Where the target proposes itself: what was chosen for the round to come, and the time that its proposal
  // took.
  DraftLength next_;
  Clock::duration asking_{};
};

}  // namespace outrider
