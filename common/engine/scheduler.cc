#include "common/engine/scheduler.h"

#include <algorithm>

namespace outrider {
namespace {

// With more pending rows than this beside logit_rows, a sequence is in prefill: a prompt, or a sequence that
// was lost.
constexpr int kPrefillThreshold = 16;

bool IsPrefill(const PendingRows& sequence) {
  return sequence.rows - sequence.logit_rows > kPrefillThreshold;
}

}  // namespace

std::vector<int> PlanStep(std::span<const PendingRows> pending, int budget) {
  std::vector<int> plan(pending.size(), 0);
  for (const bool prefills : {false, true}) {
    for (size_t i = 0; i < pending.size(); ++i) {
      const PendingRows& sequence = pending[i];
      if (IsPrefill(sequence) != prefills || budget == 0) continue;
      int rows = std::min(sequence.rows, budget);
      // The rest must keep all logit_rows.
      if (rows < sequence.rows) rows = std::min(rows, sequence.rows - sequence.logit_rows);
      plan[i] = rows;
      budget -= rows;
    }
  }
  return plan;
}

}  // namespace outrider
