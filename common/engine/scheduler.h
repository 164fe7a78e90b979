// Decides how many rows of each pending sequence go into the next forward pass. Works on counts only.
#pragma once

#include <limits>
#include <span>
#include <vector>

namespace outrider {

// The pending rows of one sequence.
struct PendingRows {
  int rows = 0;             // tokens that are not computed yet, at least 1
  int logit_rows = 0;       // how many of the last ones need logits, in one pass; 0 .. rows
  bool all_logits = false;  // the others need logits too, in any pass
  bool branch = false;      // waits while any other sequence is pending
};

// A sequence with more pending rows than this besides logit_rows is in prefill: a prompt, or a sequence that
// was lost.
inline constexpr int kPrefillThreshold = 16;
inline bool IsPrefill(const PendingRows& sequence) {
  return sequence.rows - sequence.logit_rows > kPrefillThreshold;
}

// The limits of a forward pass.
struct StepBudget {
  int rows = 0;
  int logit_rows = 0;                                  // of `rows`, those that need logits
  int prefill_rows = std::numeric_limits<int>::max();  // of `rows`, those of prefills
};

// Returns the rows for each sequence; 0 means that it must wait. Their sums are within `budget`.
//
// Decoding and verification go before prefill, each in the order given. While prefills are pending, an eighth
// of the budget is kept for them, so that other work cannot starve a prompt. The first sequence that decodes
// may use that share too if it does not fit otherwise, so prefill can go without in a step whose budget is
// less than 8/7 of one sequence's rows.
//
// Branches get rows only if nothing else is pending.
//
// A sequence that does not fit is cut (chunked prefill), but its logit_rows stay together. Every call makes
// progress if the budget has room for the logit_rows of each: no sequence is cut to nothing while the whole
// budget is free.
std::vector<int> PlanStep(std::span<const PendingRows> pending, StepBudget budget);

}  // namespace outrider
