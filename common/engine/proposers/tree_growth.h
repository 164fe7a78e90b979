// Grows a tree of drafted tokens, level by level, from the drafter's logits.
#pragma once

#include "absl/status/statusor.h"
#include "common/engine/batch.h"
#include "common/engine/sequence/sequence_state.h"
#include "common/spec/controls.h"
#include "common/spec/tree_shape.h"

namespace outrider {

struct TreeGrowth {
  const TreeShape& shape;
  int depth;           // K
  Controls& controls;  // of the distribution that is drawn from
};

// Draws the children of the nodes that AppendLevel added last, and adds them to the answer's proposal. `rows`
// has these nodes' logits (the last committed token's, if there is no proposal yet) and is overwritten. The
// children depend only on the levels before them and on these rows. Returns the number of nodes of the new
// level, the last of the proposal. Fails if there is no proposal yet and the logits are not a distribution.
//
// If a budget's tokens are taken and not drawn, likeliest_tree.h chooses them: the proposal has the likeliest
// nodes so far, never more than the budget, and nodes of earlier levels may leave it too. The sequence's tree
// keeps all computed nodes, in its own order.
absl::StatusOr<int> DrawLevel(const TreeGrowth& growth, SequenceState& sequence, const LogitsView& rows);

// Appends the last `drawn` nodes of the proposal to the sequence's tokens, to be computed; if a budget's
// tokens are taken, only the nodes to expand. Returns how many it appended: 0 if the tree is complete.
int AppendLevel(const TreeGrowth& growth, SequenceState& sequence, int drawn);

}  // namespace outrider
