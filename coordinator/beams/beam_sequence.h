// One text that a search follows: its sequences on draft and target.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/net/asio.h"
#include "coordinator/beams/beam_rows.h"
#include "coordinator/drafters/make_drafter.h"
#include "coordinator/pools/server_pool.h"
#include "coordinator/rounds/draft_length.h"
#include "coordinator/rounds/draft_length_policy.h"
#include "coordinator/rounds/drafter.h"
#include "coordinator/rounds/generation.h"
#include "coordinator/rounds/target_client.h"

namespace outrider {

// What all searches have in common, and outlives them.
struct BeamParts {
  asio::any_io_executor executor;
  const Tokenizer* tokenizer;
  TargetPool* targets;
  DrafterParts drafters;
  DraftLengthPolicy* policy;
  Metrics* metrics;
};

// Executor thread.
class BeamSequence {
 public:
  // The prompt, followed by `tokens`. The servers begin it as a copy of `fork`.
  BeamSequence(const BeamParts& parts, const Request& request, std::span<const TokenId> tokens,
               Clock::time_point received, const Fork& fork);
  ~BeamSequence();
  BeamSequence(const BeamSequence&) = delete;
  BeamSequence& operator=(const BeamSequence&) = delete;

  // Has the draft compute the text, while the target does.
  void WarmDraft() { drafter_->Begin(generation_, {}); }
  // Lets the draft propose what may follow, if anything is to be drafted, and asks the target about all of
  // it. Errors are those of TargetClient::Verify.
  asio::awaitable<absl::Status> Look(DraftLength length, Clock::time_point deadline);
  // What the last Look has found, if it was OK.
  BeamRows rows() const { return {&proposal_, answer_.candidates}; }
  // Of the prompt, in the first Look.
  uint32_t prefix_hit() const { return answer_.prefix_hit; }

  // The text goes on with these tokens, of which the first ones may be on a path of what was looked at.
  void Follow(std::span<const TokenId> tokens);

  // What another text can begin as, now: a copy of this one.
  Fork fork() const { return {generation_.sequence_id(), generation_.size()}; }
  // Ends a Look in progress; nothing is computed for this text any more.
  void Stop();

 private:
  DraftLengthPolicy* const policy_;
  Generation generation_;
  const std::unique_ptr<Drafter> drafter_;
  TargetClient target_;
  Proposal proposal_;
  TargetAnswer answer_;
  bool stopped_ = false;
};

}  // namespace outrider
