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

// The part of the budget, 1 / this, that pending prefills have to themselves.
constexpr int kPrefillShare = 8;

}  // namespace

std::vector<int> PlanStep(std::span<const PendingRows> pending, int budget) {
  std::vector<int> plan(pending.size(), 0);
  int prefill_rows = 0;
  for (const PendingRows& sequence : pending) {
    if (IsPrefill(sequence)) prefill_rows = std::min(prefill_rows + sequence.rows, budget);
  }
  const int share = std::min(prefill_rows, (budget + kPrefillShare - 1) / kPrefillShare);
  int kept = 0;  // for prefill
  for (const bool prefills : {false, true}) {
    for (size_t i = 0; i < pending.size(); ++i) {
      const PendingRows& sequence = pending[i];
      const int free = budget - kept;
      if (IsPrefill(sequence) != prefills || free <= 0) continue;
      int rows = std::min(sequence.rows, free);
      // The rest must keep all logit_rows.
      if (rows < sequence.rows) rows = std::min(rows, sequence.rows - sequence.logit_rows);
      plan[i] = rows;
      budget -= rows;
      if (!prefills) kept = share;
    }
    kept = 0;
  }
  return plan;
}

}  // namespace outrider
