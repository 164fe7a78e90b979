// Beam search with a draft and a target: finds the likeliest texts for a request.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/net/asio.h"
#include "coordinator/decode/beam_search.h"
#include "coordinator/decode/round_loop.h"
#include "coordinator/policy/measured_rounds.h"
#include "coordinator/servers/grpc_timer.h"
#include "outrider/v1/inference.pb.h"

namespace outrider {

// Whether rounds without a draft give more steps a second than rounds with one, by the width of the search.
// Learned from all searches of that width. One thread.
using BeamChoices = std::map<int, MeasuredChoice>;

// Each live text is a sequence of its own on the servers. In a round the draft proposes a tree after each
// text, and the target returns the likeliest tokens after each node, for all texts at once. The search then
// takes all steps that these rows cover. Its result does not depend on the proposals. Executor thread.
class BeamLoop {
 public:
  // `request.beam` is set. What `parts` and `choices` point to outlives this.
  BeamLoop(const DecodeParts& parts, BeamChoices* choices, Request request, Clock::time_point received,
           Clock::time_point deadline);
  ~BeamLoop();

  // Runs the search to its end. Errors are those of TargetClient::Verify.
  asio::awaitable<absl::Status> Run();
  // Ends Run, and all work that the servers do for it.
  void Stop();

  const Request& request() const { return request_; }
  // The statistics so far.
  const v1::SpeculationStats& stats() const { return stats_; }
  // The number of tokens that each live text has.
  int steps() const { return static_cast<int>(kinds_.size()); }
  // After Run: the finished texts, best first, at most Request::samples. Each is committed as a whole.
  struct Text {
    v1::GenerateResponse chunk;  // to send
    Generation::Progress progress;
  };
  std::vector<Text> Found() const;

 private:
  struct LiveText;

  asio::awaitable<absl::Status> Round();
  std::vector<DraftLength> Lengths(bool drafts) const;
  asio::awaitable<absl::Status> VerifyAll(const std::vector<DraftLength>& lengths);
  // Takes the steps that the target's rows cover. Returns how many.
  int Advance();
  std::unique_ptr<LiveText> MakeText(std::span<const TokenId> tokens, const Fork& fork) const;
  void Count(const std::vector<BeamRows>& rows, int steps);

  const DecodeParts parts_;
  BeamChoices* const choices_;
  const Request request_;
  const Clock::time_point received_;
  const Clock::time_point deadline_;
  BeamSearch search_;
  std::vector<std::unique_ptr<LiveText>> texts_;  // one for each of search_.live(), in the same order
  absl::Status failure_;                          // the first error of a Verify
  std::exception_ptr exception_;                  // the first exception of a Verify
  TaskGroup verifying_;
  bool stopped_ = false;
  std::vector<v1::TokenKind> kinds_;  // of the token that each step appended
  v1::SpeculationStats stats_;
  uint32_t cached_prompt_tokens_ = 0;
};

}  // namespace outrider
