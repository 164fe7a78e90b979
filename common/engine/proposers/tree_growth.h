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

// Draws all children of the nodes of the last level, of which `rows` has the logits (of the last committed
// token, if there is no proposal yet), and adds them to the answer's proposal. How many each gets, and what
// is drawn, depends on the levels before it and on these rows alone. Returns how many were drawn. The logits
// are overwritten. An error, if there is no proposal yet, for logits that are no distribution.
absl::StatusOr<int> DrawLevel(const TreeGrowth& growth, SequenceState& sequence, const LogitsView& rows);

// Whether the shape has children for the last `drawn` nodes.
bool GrowsOn(const TreeGrowth& growth, const SequenceState& sequence, int drawn);

// Appends the last `drawn` nodes of the proposal to the sequence's tokens, to be computed.
void AppendLevel(SequenceState& sequence, int drawn);

}  // namespace outrider
