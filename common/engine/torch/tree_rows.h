// Where the tokens of a sequence are that ends in a tree (SequenceRows::parents).
#pragma once

#include <vector>

#include "common/engine/batch.h"

namespace outrider::libtorch {

// The position of the token in `slot`, which is a slot of the sequence's rows or before them.
int PositionOf(const SequenceRows& sequence, int slot);

// The slots of the path to the node in `slot`: its ancestors in order of depth, then itself. They have the
// positions from tree_begin on. Nothing for a token before the tree.
std::vector<int> PathTo(const SequenceRows& sequence, int slot);

}  // namespace outrider::libtorch
