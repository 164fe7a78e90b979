// The main loop of a generation: propose, verify, commit, send. Also the parts that it works with: a
// generation together with its drafter and its client of the target.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/net/asio.h"
#include "common/obs/tracer.h"
#include "common/text/tokenizer.h"
#include "coordinator/decode/drafter.h"
#include "coordinator/decode/drafters/local_drafters.h"
#include "coordinator/decode/metrics.h"
#include "coordinator/decode/remote_sequence.h"
#include "coordinator/decode/target_client.h"
#include "coordinator/generation/generation.h"
#include "coordinator/policy/draft_choice.h"
#include "coordinator/servers/server_pool.h"

namespace outrider {

// The parts that all generations share. They outlive the generations.
struct DecodeParts {
  asio::any_io_executor executor;
  const Tokenizer* tokenizer;
  TargetPool* targets;
  DraftPool* drafts = nullptr;  // null: no draft service is configured
  DraftPool* second_drafts = nullptr;
  Clock::duration draft_budget{};  // per proposal
  NgramOptions ngram = {};
  DraftChoice* policy;
  Metrics* metrics;
  Tracer* tracer = nullptr;  // null: no traces
};

// Makes the drafter that the generation's request asks for. The request was checked: it names no drafter
// whose parts are missing. `fork` is for the draft service.
std::unique_ptr<Drafter> MakeDrafter(Generation* generation, const DecodeParts& parts, Fork fork);

// A generation and its servers, for a sample or for a text that a beam search follows. Executor thread.
struct Decoding {
  // `received` is when the request came. The servers begin its sequence as a copy of `fork`.
  Decoding(const DecodeParts& the_parts, Request request, Clock::time_point received,
           Clock::time_point deadline, const Fork& fork)
      : parts(the_parts),
        generation(std::move(request), parts.tokenizer, received),
        drafter(MakeDrafter(&generation, parts, fork)),
        target(parts.targets, parts.metrics, &generation, deadline, fork) {}
  ~Decoding() { Stop(); }

  // Call when the generation is over or its client is gone. The servers release what they hold of it, and
  // compute nothing more for it. Ends a Take or Verify in progress.
  void Stop() {
    if (std::exchange(stopped, true)) return;
    drafter->Stop();
    target.Stop();
  }

  const DecodeParts parts;
  Generation generation;
  const std::unique_ptr<Drafter> drafter;
  TargetClient target;
  bool stopped = false;
};

// Runs one generation to its end. An error ends it early; the chunks sent before the error stand.
class RoundLoop final : public Decoding {
 public:
  // Sends a chunk to the client. Returns when there is room for more, or an error when nobody reads any more.
  using SendChunk = std::function<asio::awaitable<absl::Status>(v1::GenerateResponse)>;

  RoundLoop(const DecodeParts& the_parts, Request request, Clock::time_point received,
            Clock::time_point deadline, const Fork& fork, SendChunk send)
      : Decoding(the_parts, std::move(request), received, deadline, fork), send_(std::move(send)) {}

  // Runs the first round, in which the servers compute the prompt. Call it once, before Decode.
  asio::awaitable<absl::Status> ComputePrompt();
  // Runs the rounds that follow, until the generation is over.
  asio::awaitable<absl::Status> Decode();

 private:
  asio::awaitable<absl::Status> Round();
  // Begins the span of the next round, if the round is to be traced.
  void TraceRound();
  // Sends the first of the requested prompt positions in chunks of their own. Returns how many positions it
  // has sent; the others go with the first token.
  asio::awaitable<absl::StatusOr<int>> SendPromptLogprobs(const Generation::Logprobs& prompt);
  // Reports a round to the policy, the metrics and the log, and in `chunk` if the client asked for a trace.
  void Report(const RoundReport& report, v1::GenerateResponse* chunk);

  const SendChunk send_;
  Span span_;  // of the round
  // If the target itself proposes: the length chosen for the next round, and the time that its proposal took.
  DraftLength next_;
  Clock::duration asking_{};
  bool drafted_before_ = false;  // whether the last round had a proposal
};

}  // namespace outrider
