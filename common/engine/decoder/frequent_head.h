// A draft's head that is cut to the most frequent tokens. The head is half of what a small model reads per
// token, and most of its rows belong to tokens that are hardly ever drafted. The tokens cut away get
// logits so low that none is sampled, unless a mask leaves nothing else or the text has them
// (text_tokens.h). The draft reports as q what it samples from, so verification stays exact.
//
// See Zhao et al. 2025, "FR-Spec: Accelerating Large-Vocabulary Language Models via Frequency-Ranked
// Speculative Sampling".
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/decoder/decoder_config.h"
#include "common/engine/decoder/tensor_source.h"
#include "common/spec/status.h"
#include "common/spec/types.h"

namespace outrider {

// Reads frequent_tokens.json in the model's folder or beside its file or layers, which lists ids under
// "tokens", most frequent first. Returns the first `count` of them, in ascending order. NOT_FOUND or
// INVALID_ARGUMENT, naming the file, if it is missing, lists fewer ids, or lists an id twice or outside [0,
// vocab_size).
absl::StatusOr<std::vector<TokenId>> ReadFrequentTokens(const std::string& model, int count, int vocab_size);

// The weights of another source, but with a head of only these tokens' rows, as TensorsOf asks for with
// DecoderConfig::head_tokens. Thread-safe if the other source is.
class FrequentHead final : public TensorSource {
 public:
  // `spec` is that of the whole model. All references must outlive it.
  FrequentHead(const TensorSource& whole, const DecoderConfig& spec, absl::Span<const TokenId> tokens);

  using TensorSource::Get;
  absl::StatusOr<TensorView> Get(absl::string_view name, absl::Span<const int64_t> shape) const override;
  absl::Status Check(absl::string_view name, absl::Span<const int64_t> shape) const override {
    return IsCutHead(name, shape) ? whole_.Check(name, whole_shape_) : whole_.Check(name, shape);
  }
  std::optional<BlockFormat> BlocksOf(absl::string_view name,
                                      absl::Span<const int64_t> shape) const override {
    return IsCutHead(name, shape) ? whole_.BlocksOf(name, whole_shape_) : whole_.BlocksOf(name, shape);
  }
  absl::StatusOr<BlockReader> GetBlocks(absl::string_view name,
                                        absl::Span<const int64_t> shape) const override {
    if (!IsCutHead(name, shape)) return whole_.GetBlocks(name, shape);
    BlockReader whole = OUTRIDER_TRY(whole_.GetBlocks(name, whole_shape_));
    return [whole = std::move(whole), tokens = tokens_](int64_t row, int64_t block, Block& to) {
      whole(tokens[static_cast<size_t>(row)], block, to);
    };
  }

 private:
  bool IsCutHead(absl::string_view name, absl::Span<const int64_t> shape) const {
    return name == head_ && shape.size() == 2 && shape[0] == static_cast<int64_t>(tokens_.size());
  }

  const TensorSource& whole_;
  const std::string head_;
  const std::vector<int64_t> whole_shape_;
  const absl::Span<const TokenId> tokens_;
};

// to[tokens[i]] = logits[i]; the other tokens get a logit so low that their weight is 0 at every temperature
// that a request can ask for.
void SpreadLogits(absl::Span<const float> logits, absl::Span<const TokenId> tokens, absl::Span<float> to);

}  // namespace outrider
