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
  for (const Drafting* drafting : draftings) {
    batch.push_back(RowsOfLevel(*drafting));
    batch.back().hidden_rows = drafting->rows;
  }
  const absl::StatusOr<LogitsView> pass = model_.Forward(batch, {.layers = layers_, .taps = {&layers_, 1}});
  if (!pass.ok()) return pass.status();
  int row = 0;
  for (const Drafting* drafting : draftings) {
    for (int r = 0; r < drafting->rows; ++r) {
      const absl::Span<const float> hidden = pass->hidden.row(row++);
      // The last half is the residual stream.
      drafting->sequence->AddBegun(layers_, hidden.subspan(hidden.size() / 2));
    }
  }
  return *pass;
}

}  // namespace outrider
