#include "common/engine/proposers/layer_skip.h"

#include <vector>

namespace outrider {

SequenceRows RowsOfLevel(const Drafting& drafting) {
  const SequenceState& sequence = *drafting.sequence;
  const int first = static_cast<int>(sequence.tokens().size()) - drafting.rows;
  SequenceRows rows{.tokens = sequence.tokens().subspan(static_cast<size_t>(first)),
                    .position = first,
                    .blocks = sequence.blocks(),
                    .logit_rows = drafting.rows};
  if (!sequence.parents().empty()) {
    rows.tree_begin = sequence.tree_begin();
    rows.parents = sequence.parents();
  }
  return rows;
}

absl::StatusOr<LogitsView> LayerSkip::Level(int /*level*/, std::span<Drafting* const> draftings) {
  std::vector<SequenceRows> batch;
  for (const Drafting* drafting : draftings) batch.push_back(RowsOfLevel(*drafting));
  return model_.Forward(batch, {.layers = layers_});
}

}  // namespace outrider
