// Which drafter a request gets.
#pragma once

#include <memory>

#include "coordinator/drafters/circuit_breaker.h"
#include "coordinator/drafters/copy_drafter.h"
#include "coordinator/drafters/corpus_counts.h"
#include "coordinator/drafters/ngram_drafter.h"
#include "coordinator/link/link.h"
#include "coordinator/rounds/metrics.h"
#include "coordinator/rounds/remote_sequence.h"

namespace outrider {

// What the drafters of all generations have in common.
struct DrafterParts {
  std::shared_ptr<DraftLink> draft;            // null: no draft service is configured
  std::shared_ptr<CircuitBreaker> breaker;     // of that draft
  Clock::duration draft_budget;                // for a proposal
  std::shared_ptr<const CorpusCounts> corpus;  // null: there is none
  NgramOptions ngram;
  CopyOptions copy;
  Metrics* metrics;
};

// The request has been checked: it names no drafter whose parts are missing.
// `vocab` is the target's; `fork` is for the draft service.
std::unique_ptr<Drafter> MakeDrafter(v1::DrafterKind kind, const DrafterParts& parts, int vocab, Fork fork);

}  // namespace outrider
