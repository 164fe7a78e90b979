// The loop that everything else serves.
#pragma once

#include <asio/awaitable.hpp>

#include "absl/status/status.h"
#include "coordinator/rounds/draft_length_policy.h"
#include "coordinator/rounds/drafter.h"
#include "coordinator/rounds/generation.h"
#include "coordinator/rounds/metrics.h"
#include "coordinator/rounds/target_client.h"

namespace outrider {

// Where chunks go. Executor thread.
class Sink {
 public:
  virtual ~Sink() = default;
  // Returns when there is room for more; an error when nobody reads any more.
  virtual asio::awaitable<absl::Status> Send(v1::GenerateResponse chunk) = 0;
};

// Who takes part in a generation; all outlive it.
struct Cast {
  Drafter* drafter;  // null: nobody drafts
  TargetClient* target;
  DraftLengthPolicy* policy;
  Sink* sink;
  Metrics* metrics;
};

// Commits token after token until the generation is over. An error ends it early; what was sent until then
// stands.
asio::awaitable<absl::Status> RunGeneration(Generation& generation, Cast cast, Clock::time_point deadline);

}  // namespace outrider
