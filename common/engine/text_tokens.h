// The tokens of a text, for a draft's head that has only the frequent ones: a token that was in the text is
// likely to come again, however rare it is elsewhere (MicroSpec, arXiv 2605.26444). All other tokens have q =
// 0. The draft reports as q what it samples from, so verification stays exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/model.h"
#include "common/spec/types.h"

namespace outrider {

// Not thread-safe.
class TextTokens {
 public:
  // `head`: the tokens that the head has. Embeddings of the model, which must outlive this, are rows of the
  // whole head: see HasRowsOfHead.
  TextTokens(absl::Span<const TokenId> head, const DecoderConfig& spec, Model& model);
  static bool HasRowsOfHead(const DecoderConfig& spec, const Model& model) {
    return spec.tie_word_embeddings && !spec.embedding_scale && model.has_hidden_states();
  }

  // The tokens among the text's last kText that the head lacks, each once.
  std::vector<TokenId> OthersIn(absl::Span<const TokenId> text);

  // Sets logits[token] for each of these tokens, from the head's input `state`, [hidden]. An error means that
  // the device failed.
  absl::Status SetLogits(absl::Span<const float> state, absl::Span<const TokenId> others,
                         absl::Span<float> logits);

 private:
  static constexpr size_t kText = 1024;
  static constexpr size_t kCached = 4096;  // rows

  // The head's row of a token, valid until the next call.
  absl::StatusOr<absl::Span<const float>> RowOf(TokenId token, size_t hidden);

  Model& model_;
  const std::optional<double> softcap_;
  // For each token, the last call of OthersIn that met it; kAlways: the head has it.
  static constexpr uint32_t kAlways = std::numeric_limits<uint32_t>::max();
  std::vector<uint32_t> met_;
  uint32_t calls_ = 0;
  // Rows that were read before, and the place of each token's among them.
  std::vector<float> cached_;
  std::unordered_map<TokenId, size_t> places_;
};

// The sum of x[i] y[i], in a fixed order.
float Dot(const float* x, const float* y, size_t n);
// cap * tanh(logit / cap), if there is a cap.
float Capped(float logit, std::optional<double> cap);

}  // namespace outrider
