// The loop that everything else serves: propose, verify, commit, send.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/asio.h"
#include "coordinator/decode/decoding.h"
#include "coordinator/generation/round_report.h"

namespace outrider {

// Tells all who keep account of rounds about each of them: the metrics, the policy, the log at level debug,
// and the client, if it asked for a trace. Executor thread.
class RoundObserver {
 public:
  // Both outlive this.
  RoundObserver(Metrics* metrics, DraftChoice* policy) : metrics_(metrics), policy_(policy) {}

  // `chunk` is what the round sends; it gets the trace.
  void OnRound(const RoundReport& report, v1::GenerateResponse* chunk);

 private:
  Metrics* const metrics_;
  DraftChoice* const policy_;
};

// Takes one generation to its end. An error ends it early; what was sent until then stands. Executor thread.
class RoundLoop {
 public:
  // Sends a chunk to the client. Returns when there is room for more; an error when nobody reads any more.
  using SendChunk = std::function<asio::awaitable<absl::Status>(v1::GenerateResponse)>;

  // What it is given outlives it.
  RoundLoop(Decoding* decoding, RoundObserver* observer, SendChunk send)
      : generation_(&decoding->generation),
        drafter_(decoding->drafter.get()),
        target_(&decoding->target),
        policy_(decoding->parts.policy),
        observer_(observer),
        send_(std::move(send)) {}

  // The first round, in which the servers compute the prompt. Call it once, before Decode.
  asio::awaitable<absl::Status> ComputePrompt();
  // The rounds that follow, until the generation is over.
  asio::awaitable<absl::Status> Decode();

 private:
  asio::awaitable<absl::Status> Round();
  // What is drafted in this round, and what the target is asked to propose for the next.
  DraftLength Choose();
  DraftLength ChooseNext();
  // Sends the beginning of what was asked for of the prompt in chunks of its own. Returns how many positions
  // it has sent; the rest goes with the first token.
  asio::awaitable<absl::StatusOr<int>> SendPromptLogprobs(const Generation::Logprobs& prompt);

  Generation* const generation_;
  Drafter* const drafter_;
  TargetClient* const target_;
  DraftChoice* const policy_;
  RoundObserver* const observer_;
  const SendChunk send_;
  // Where the target proposes itself: what was chosen for the round to come, and the time that its proposal
  // took.
  DraftLength next_;
  Clock::duration asking_{};
};

}  // namespace outrider
