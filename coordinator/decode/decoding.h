// A generation together with its drafter and its client of the target.
#pragma once

#include <memory>
#include <utility>

#include "common/net/asio.h"
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

// What all generations share; outlives them.
struct DecodeParts {
  asio::any_io_executor executor;
  const Tokenizer* tokenizer;
  TargetPool* targets;
  DraftPool* drafts = nullptr;     // null: no draft service is configured
  Clock::duration draft_budget{};  // per proposal
  NgramOptions ngram = {};
  CopyOptions copy = {};
  DraftChoice* policy;
  Metrics* metrics;
};

// Makes the drafter that the generation's request asks for. The request was checked: it names no drafter
// whose parts are missing. `fork` is for the draft service.
std::unique_ptr<Drafter> MakeDrafter(Generation* generation, const DecodeParts& parts, Fork fork);

// For a sample, or for a text that a search follows. Executor thread.
struct Decoding {
  // A request that came at `received` and ends at `deadline`. The servers begin the sequence as a copy of
  // `fork`.
  Decoding(const DecodeParts& the_parts, Request request, Clock::time_point received,
           Clock::time_point deadline, const Fork& fork)
      : parts(the_parts),
        generation(std::move(request), parts.tokenizer, received),
        drafter(MakeDrafter(&generation, parts, fork)),
        target(parts.targets, parts.metrics, &generation, deadline, fork) {}
  ~Decoding() { Stop(); }
  Decoding(const Decoding&) = delete;
  Decoding& operator=(const Decoding&) = delete;

  // Call when the generation is over or its client gone: the servers release what they hold of it, and
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

}  // namespace outrider
