// Which nodes of a proposal had the chance to be accepted.
#pragma once

#include <span>
#include <vector>

#include "common/spec/proposal.h"

namespace outrider {

struct OfferedNode {
  int depth = 0;
  int rank = 0;  // its place among its siblings
  bool accepted = false;
};

// The nodes that follow the last committed token or an accepted node, in the proposal's order. `path` is the
// verdict's. Of a chain each has rank 0.
inline std::vector<OfferedNode> OfferedNodes(std::span<const ProposalNode> proposal,
                                             std::span<const int> path) {
  std::vector<OfferedNode> offered;
  std::vector<int> ranks(path.size() + 1);
  for (size_t i = 0; i < proposal.size(); ++i) {
    for (size_t depth = 0; depth <= path.size(); ++depth) {
      if (proposal[i].parent != (depth == 0 ? -1 : path[depth - 1])) continue;
      const bool accepted = depth < path.size() && path[depth] == static_cast<int>(i);
      offered.push_back({static_cast<int>(depth), ranks[depth]++, accepted});
    }
  }
  return offered;
}

}  // namespace outrider
