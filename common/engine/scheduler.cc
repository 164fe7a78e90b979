#include "common/engine/scheduler.h"

#include <algorithm>

namespace outrider {
namespace {

// While prefills are pending, 1 / this of the budget is kept for them.
constexpr int kPrefillShare = 8;

// Returns the budget to keep for prefill: that part of `budget`, or less if the prefills need less.
StepBudget ShareOfPrefill(std::span<const PendingRows> pending, const StepBudget& budget, bool branches) {
  StepBudget needed;
  for (const PendingRows& sequence : pending) {
    if (!IsPrefill(sequence) || sequence.branch != branches) continue;
    needed.rows = std::min(needed.rows + sequence.rows, budget.rows);
    if (sequence.all_logits) {
      needed.logit_rows = std::min(needed.logit_rows + sequence.rows, budget.logit_rows);
    }
  }
  return {std::min({needed.rows, (budget.rows + kPrefillShare - 1) / kPrefillShare, budget.prefill_rows}),
          std::min(needed.logit_rows, (budget.logit_rows + kPrefillShare - 1) / kPrefillShare)};
}

}  // namespace

std::vector<int> PlanStep(std::span<const PendingRows> pending, StepBudget budget) {
  std::vector<int> plan(pending.size(), 0);
  const bool only_branches = std::all_of(pending.begin(), pending.end(),
                                         [](const PendingRows& sequence) { return sequence.branch; });
  const StepBudget share = ShareOfPrefill(pending, budget, only_branches);
  StepBudget kept;  // for prefill
  for (const bool prefills : {false, true}) {
    for (size_t i = 0; i < pending.size(); ++i) {
      const PendingRows& sequence = pending[i];
      const StepBudget free = {budget.rows - kept.rows, budget.logit_rows - kept.logit_rows};
      if (IsPrefill(sequence) != prefills || free.rows <= 0 || sequence.branch != only_branches) continue;
      int rows = std::min(sequence.rows, free.rows);
      if (prefills) rows = std::min(rows, budget.prefill_rows);
      if (sequence.all_logits) rows = std::min(rows, free.logit_rows);
      // A sequence that is cut keeps all its logit_rows for a later pass.
      if (rows < sequence.rows || sequence.logit_rows > free.logit_rows) {
        rows = std::min(rows, sequence.rows - sequence.logit_rows);
      }
      rows = std::max(rows, 0);
      plan[i] = rows;
      budget.rows -= rows;
      if (prefills) budget.prefill_rows -= rows;
      budget.logit_rows -= sequence.all_logits ? rows : rows == sequence.rows ? sequence.logit_rows : 0;
      if (!prefills) kept = share;
    }
    kept = {};
  }
  return plan;
}

}  // namespace outrider
