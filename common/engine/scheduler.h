// Decides how many rows of each waiting sequence go into the next forward pass. Knows counts only.
#pragma once

#include <span>
#include <vector>

namespace outrider {

// What one sequence waits for.
struct PendingRows {
  int rows = 0;        // tokens that are known but not in the cache, at least 1
  int logit_rows = 0;  // of them, the last ones, whose logits are needed together; 0 .. rows
};

// Rows for each sequence, 0 for those that have to wait; at most `budget` in all. Short waits (decoding,
// verification) go before long ones (prompts), each in the order given; a wait that does not fit is cut, but
// the logit_rows rows stay together. A sequence is never cut to nothing when the whole budget is free, so
// every call makes progress if budget >= max logit_rows.
std::vector<int> PlanStep(std::span<const PendingRows> pending, int budget);

}  // namespace outrider
