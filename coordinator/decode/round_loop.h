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

// Reports each round to the metrics, the policy, the log at level debug and, if it asked for a trace, the
// client. Executor thread.
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

// Takes one generation to its end. An error ends it early; what was sent before stands. Executor thread.
class RoundLoop {
 public:
  // Sends a chunk to the client. Returns when there is room for more, or an error when nobody reads any more.
  using SendChunk = std::function<asio::awaitable<absl::Status>(v1::GenerateResponse)>;

  // The arguments outlive this.
  RoundLoop(Decoding* decoding, RoundObserver* observer, SendChunk send)
      : generation_(&decoding->generation),
        drafter_(decoding->drafter.get()),
        target_(&decoding->target),
        policy_(decoding->parts.policy),
        observer_(observer),
        send_(std::move(send)) {}

  // Runs the first round, in which the servers compute the prompt. Call it once, before Decode.
  asio::awaitable<absl::Status> ComputePrompt();
  // Runs the rounds that follow, until the generation is over.
  asio::awaitable<absl::Status> Decode();

 private:
  asio::awaitable<absl::Status> Round();
  // Chooses what to draft in this round, and what to ask the target to propose for the next.
  DraftLength Choose();
  DraftLength ChooseNext();
  // Sends the first of the requested prompt positions in chunks of their own. Returns how many positions it
  // has sent; the rest goes with the first token.
  asio::awaitable<absl::StatusOr<int>> SendPromptLogprobs(const Generation::Logprobs& prompt);

  Generation* const generation_;
  Drafter* const drafter_;
  TargetClient* const target_;
  DraftChoice* const policy_;
  RoundObserver* const observer_;
  const SendChunk send_;
  // If the target itself proposes: the length chosen for the next round, and the time that its proposal took.
  DraftLength next_;
  Clock::duration asking_{};
};

}  // namespace outrider
