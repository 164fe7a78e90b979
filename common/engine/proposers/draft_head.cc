#include "common/engine/proposers/draft_head.h"

#include <cmath>

#include "common/engine/decoder/frequent_head.h"

namespace outrider {

absl::StatusOr<LogitsView> DraftHead::Project(absl::Span<const float> states, int rows) {
  if (target_ != nullptr) return target_->Project(states);
  const size_t vocab = static_cast<size_t>(own_.vocab);
  const size_t columns = own_.tokens.empty() ? vocab : own_.tokens.size();
  const size_t count = static_cast<size_t>(rows);
  few_.resize(count * columns);
  if (absl::Status status = own_.matrix->Multiply(states, absl::MakeSpan(few_)); !status.ok()) return status;
  if (own_.softcap) {
    const float cap = static_cast<float>(*own_.softcap);
    for (float& logit : few_) logit = cap * std::tanh(logit / cap);
  }
  if (own_.tokens.empty()) return LogitsView{few_.data(), rows, own_.vocab};
  // Whole rows anew: controls have overwritten the last ones.
  all_.resize(count * vocab);
  for (size_t r = 0; r < count; ++r) {
    SpreadLogits(absl::MakeConstSpan(few_).subspan(r * columns, columns), own_.tokens,
                 absl::MakeSpan(all_).subspan(r * vocab, vocab));
  }
  return LogitsView{all_.data(), rows, own_.vocab};
}

}  // namespace outrider
