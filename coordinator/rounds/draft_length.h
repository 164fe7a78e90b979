// How much to draft in a round.
#pragma once

#include <optional>

#include "common/spec/draft_stop.h"
#include "common/spec/tree_shape.h"

namespace outrider {

struct DraftLength {
  int most = 0;  // K; of a tree the depth
  // When a draft model ends before that; other drafters take no notice.
  std::optional<DraftStop> stop = {};
  // While the round is verified, its likely outcomes are drafted for; likewise.
  bool ahead = false;
  std::optional<TreeShape> tree = {};  // unset: a chain
};

}  // namespace outrider
