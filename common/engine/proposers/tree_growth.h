// How a tree of drafted tokens grows, level by level, from the logits of whoever drafts.
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

// Draws the children of the nodes that AppendLevel added last, of which `rows` has the logits (of the last
// committed token, if there is no proposal yet), and adds them to the answer's proposal. How many each gets,
// and what is drawn, depends on the levels before it and on these rows alone. Returns how many nodes the new
// level has, the last ones. The logits are overwritten. An error, if there is no proposal yet, for logits
// that are no distribution.
//
// A budget's tokens that are taken and not drawn are chosen by likeliest_tree.h: the proposal is then the
// likeliest nodes so far, at no time more than the budget, and nodes of earlier levels leave it too. The
// sequence's tree keeps what was computed, in its own order.
absl::StatusOr<int> DrawLevel(const TreeGrowth& growth, SequenceState& sequence, const LogitsView& rows);

// Appends those of the last `drawn` nodes of the proposal that are to have children to the sequence's tokens,
// to be computed. Returns how many: 0 if the tree is complete.
int AppendLevel(const TreeGrowth& growth, SequenceState& sequence, int drawn);

}  // namespace outrider
