// Which drafter a request gets.
#pragma once

#include <memory>

#include "coordinator/decode/drafters/local_drafters.h"
#include "coordinator/decode/metrics.h"
#include "coordinator/decode/remote_sequence.h"
#include "coordinator/servers/server_pool.h"

namespace outrider {

// What the drafters of all generations share.
struct DrafterParts {
  DraftPool* drafts = nullptr;     // null: no draft service is configured
  Clock::duration draft_budget{};  // per proposal
  NgramOptions ngram = {};
  CopyOptions copy = {};
  Metrics* metrics = nullptr;
};

// Makes the drafter that the generation's request asks for. The request was checked: it names no drafter
// whose parts are missing. `vocab` is the target's; `fork` is for the draft service.
std::unique_ptr<Drafter> MakeDrafter(Generation* generation, const DrafterParts& parts, int vocab, Fork fork);

}  // namespace outrider
