#include "common/engine/scheduler.h"

#include <algorithm>

namespace outrider {
namespace {

// More rows than that beyond the logit_rows ones is a prompt, or a sequence that was lost.
constexpr int kShortWait = 16;

bool IsShort(const WaitingRows& w) { return w.rows - w.logit_rows <= kShortWait; }

}  // namespace

std::vector<int> PlanStep(std::span<const WaitingRows> waiting, int budget) {
  std::vector<int> plan(waiting.size(), 0);
  for (const bool take_short : {true, false}) {
    for (size_t i = 0; i < waiting.size(); ++i) {
      const WaitingRows& w = waiting[i];
      if (IsShort(w) != take_short || budget == 0) continue;
      int rows = std::min(w.rows, budget);
      // The rest must keep all logit_rows rows.
      if (rows < w.rows) rows = std::min(rows, w.rows - w.logit_rows);
      plan[i] = rows;
      budget -= rows;
    }
  }
  return plan;
}

}  // namespace outrider
