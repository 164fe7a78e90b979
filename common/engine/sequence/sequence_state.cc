#include "common/engine/sequence/sequence_state.h"

#include <utility>

namespace outrider {

int SequenceState::prompt_logprobs() const {
  const auto* verify = std::get_if<VerifyWork>(&item_.work);
  return verify == nullptr ? -1 : verify->prompt_logprobs;
}

absl::Span<const float> SequenceState::BegunRows(int rows) const {
  const int begun = std::min(cache_.num_begun(), rows - 1);
  if (begun <= 0) return {};
  const size_t columns = begun_streams_.size() / static_cast<size_t>(cache_.begun_size());
  return absl::MakeConstSpan(begun_streams_).first(static_cast<size_t>(begun) * columns);
}

void SequenceState::AddBegun(int layers, absl::Span<const float> streams) {
  begun_layers_ = layers;
  begun_streams_.insert(begun_streams_.end(), streams.begin(), streams.end());
}

void SequenceState::CommitNext(ProposalNode next) {
  Append(next.token);
  committed_ = cache_.size();
  answer_.next = std::move(next);
  if (item_.on_next) item_.on_next(*answer_.next);
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
