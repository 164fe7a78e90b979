// What a verification may come to, and what would be drafted then.
#pragma once

#include <cstddef>
#include <optional>

#include "common/spec/types.h"
#include "coordinator/rounds/draft_length.h"

namespace outrider {

struct Outcome {
  size_t accepted = 0;                // drafted tokens that stand
  std::optional<TokenId> token = {};  // that follows them; unset: the draft draws it, after a whole proposal
  DraftLength length;                 // of the proposal that follows it
};

}  // namespace outrider
