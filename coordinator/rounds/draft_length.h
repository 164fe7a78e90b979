// How much to draft in a round.
#pragma once

#include <optional>

#include "common/spec/draft_stop.h"

namespace outrider {

struct DraftLength {
  int most = 0;  // K
  // When a draft model ends before that; other drafters take no notice.
  std::optional<DraftStop> stop = {};
  // While the round is verified, its likely outcomes are drafted for; likewise.
  bool ahead = false;
};

}  // namespace outrider
