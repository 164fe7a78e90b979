// The inputs of CpuModel's passes.
#include <algorithm>

#include "common/engine/cpu/cpu_model.h"
#include "common/engine/decoder/elements.h"

namespace outrider {

void CpuModel::Embed(absl::Span<const SequenceRows> batch) {
  // A layer that continues another model's states has no table.
  if (!spec_.outer_norms) {
    TakeEmbeddings(batch);
  } else {
    EmbedTokens(batch);
  }
  ObserveFloats(kEmbedded, 0, rows_.size(), hidden_, spec_.hidden_size, spec_.hidden_size);
}

void CpuModel::EmbedTokens(absl::Span<const SequenceRows> batch) {
  const TensorView& embedding = weights_.embedding;
  const int hidden = spec_.hidden_size;
  ForRows(rows_.size(), [&](int row) {
    float* to = hidden_.floats() + static_cast<int64_t>(row) * hidden;
    const int64_t from = static_cast<int64_t>(rows_[row].token) * hidden;
    ReadElements(embedding, from, hidden, to);
  });
  size_t end = 0;
  for (const SequenceRows& sequence : batch) {
    end += sequence.tokens.size();
    const size_t count = sequence.embeddings.size();
    std::copy_n(sequence.embeddings.data(), count,
                hidden_.floats() + end * static_cast<size_t>(hidden) - count);
  }
}

void CpuModel::TakeEmbeddings(absl::Span<const SequenceRows> batch) {
  const size_t hidden = static_cast<size_t>(spec_.hidden_size);
  const size_t attended = static_cast<size_t>(spec_.attention_input);
  size_t row = 0;
  for (const SequenceRows& sequence : batch) {
    const float* from = sequence.embeddings.data();
    for (size_t i = 0; i < sequence.tokens.size(); ++i, ++row) {
      std::copy_n(from, hidden, hidden_.floats() + row * hidden);
      multiplier_.ToOperands(from + hidden, spec_.attention_input,
                             normalized_.data() + row * attended * multiplier_.operand_bytes());
      from += hidden + attended;
    }
  }
}

absl::Status CpuModel::ReadEmbeddings(absl::Span<const TokenId> tokens, absl::Span<float> to) {
  const int hidden = spec_.hidden_size;
  for (size_t i = 0; i < tokens.size(); ++i) {
    ReadElements(weights_.embedding, int64_t{tokens[i]} * hidden, hidden,
                 to.data() + i * static_cast<size_t>(hidden));
  }
  return absl::OkStatus();
}

}  // namespace outrider
