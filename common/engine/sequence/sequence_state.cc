#include "common/engine/sequence/sequence_state.h"

namespace outrider {

int SequenceState::prompt_logprobs() const {
  const auto* verify = std::get_if<VerifyWork>(&item_.work);
  return verify == nullptr ? -1 : verify->prompt_logprobs;
}

void SequenceState::CommitNext(TokenId next) {
  Append(next);
  committed_ = cache_.size();
  answer_.next = next;
  if (item_.on_next) item_.on_next(next);
}

void SequenceState::OnStep(absl::Time start, int batch_sequences, int batch_rows) {
  answer_.timing.batch_sequences = batch_sequences;
  answer_.timing.batch_rows = batch_rows;
  step_started_at_ = start;
  if (started_) return;
  started_ = true;
  started_at_ = start;
}

}  // namespace outrider
