// Which drafter a request gets.
#pragma once

#include <memory>

#include "coordinator/drafters/copy_drafter.h"
#include "coordinator/drafters/corpus_counts.h"
#include "coordinator/drafters/ngram_drafter.h"
#include "coordinator/pools/server_pool.h"
#include "coordinator/rounds/metrics.h"
#include "coordinator/rounds/remote_sequence.h"
#include "coordinator/rounds/request.h"

namespace outrider {

// What the drafters of all generations have in common.
struct DrafterParts {
  DraftPool* drafts = nullptr;                 // null: no draft service is configured
  Clock::duration draft_budget{};              // for a proposal
  std::shared_ptr<const CorpusCounts> corpus;  // null: there is none
  NgramOptions ngram;
  CopyOptions copy;
  Metrics* metrics = nullptr;
};

// The request has been checked: it names no drafter whose parts are missing. `vocab` is the target's; `fork`
// is for the draft service.
std::unique_ptr<Drafter> MakeDrafter(const Request& request, const DrafterParts& parts, int vocab, Fork fork);

}  // namespace outrider
