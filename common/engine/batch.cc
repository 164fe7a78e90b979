#include "common/engine/batch.h"

namespace outrider {

std::vector<SequenceRows> NotResumed(absl::Span<const SequenceRows> batch, int hidden_size) {
  std::vector<SequenceRows> others(batch.begin(), batch.end());
  for (SequenceRows& sequence : others) {
    const size_t resumed = sequence.resumed.size() / static_cast<size_t>(hidden_size);
    sequence.tokens.remove_prefix(resumed);
    sequence.position += static_cast<int>(resumed);
    sequence.logit_rows = 0;
    sequence.hidden_rows = 0;
    sequence.task = nullptr;
    sequence.resumed = {};
  }
  return others;
}

}  // namespace outrider
