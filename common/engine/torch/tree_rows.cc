#include "common/engine/torch/tree_rows.h"

#include <algorithm>
#include <cstddef>

namespace outrider::libtorch {

std::vector<int> PathTo(const SequenceRows& sequence, int slot) {
  std::vector<int> path;
  if (sequence.parents.empty()) return path;
  for (int node = slot - sequence.tree_begin; node >= 0; node = sequence.parents[static_cast<size_t>(node)]) {
    path.push_back(sequence.tree_begin + node);
  }
  std::reverse(path.begin(), path.end());
  return path;
}

int PositionOf(const SequenceRows& sequence, int slot) {
  if (sequence.parents.empty() || slot < sequence.tree_begin) return slot;
  return sequence.tree_begin + static_cast<int>(PathTo(sequence, slot).size()) - 1;
}

}  // namespace outrider::libtorch
