// Decides, once a round, how many tokens to draft.
#pragma once

#include <algorithm>

#include "coordinator/generation.h"

namespace outrider {

// K as the request says. A round emits up to K + 1 tokens, so the last ones of an answer are drafted for
// less; the prompt's own round is plain, since the first token should not wait for a draft.
class Policy {
 public:
  int DraftTokens(const Generation& generation) const {
    if (generation.emitted() == 0) return 0;
    return std::min(generation.request().draft_tokens, std::max(generation.Room() - 1, 0));
  }
};

}  // namespace outrider
