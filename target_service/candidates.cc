#include "target_service/candidates.h"

#include <span>

#include "common/spec/status.h"
#include "common/spec/weights.h"

namespace outrider {

absl::StatusOr<std::vector<CandidateRow>> Candidates(const LogitsView& logits, int n) {
  std::vector<CandidateRow> rows;
  for (int i = 0; i < logits.rows; ++i) {
    const std::span<const float> row(logits.row(i).data(), logits.row(i).size());
    if (!FindMax(row).finite) return NotFiniteError();
    rows.push_back(TopLogProbabilities(row, n));
  }
  return rows;
}

}  // namespace outrider
