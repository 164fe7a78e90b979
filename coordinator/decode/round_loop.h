// The loop that everything else serves: propose, verify, commit, send.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/asio.h"
#include "coordinator/decode/decoding.h"
#include "coordinator/generation/generation.h"

namespace outrider {

// Takes one generation to its end. An error ends it early; what was sent before stands. Executor thread.
class RoundLoop {
 public:
  // Sends a chunk to the client. Returns when there is room for more, or an error when nobody reads any more.
  using SendChunk = std::function<asio::awaitable<absl::Status>(v1::GenerateResponse)>;

  // The arguments outlive this.
  RoundLoop(Decoding* decoding, SendChunk send)
      : generation_(&decoding->generation),
        drafter_(decoding->drafter.get()),
        target_(&decoding->target),
        policy_(decoding->parts.policy),
        metrics_(decoding->parts.metrics),
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
  // Reports a round to the policy, the metrics, the log at level debug and, with a trace in `chunk`, to a
  // client that asked for one.
  void Report(const RoundReport& report, v1::GenerateResponse* chunk);

  Generation* const generation_;
  Drafter* const drafter_;
  TargetClient* const target_;
  DraftChoice* const policy_;
  Metrics* const metrics_;
  const SendChunk send_;
  // If the target itself proposes: the length chosen for the next round, and the time that its proposal took.
  DraftLength next_;
  Clock::duration asking_{};
};

}  // namespace outrider
