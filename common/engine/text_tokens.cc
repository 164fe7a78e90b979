#include "common/engine/text_tokens.h"

#include <algorithm>
#include <cmath>

#include "common/spec/status.h"

namespace outrider {

TextTokens::TextTokens(absl::Span<const TokenId> head, const DecoderConfig& spec, Model& model)
    : model_(model), softcap_(spec.final_softcap), met_(static_cast<size_t>(spec.vocab_size)) {
  for (const TokenId token : head) met_[static_cast<size_t>(token)] = kAlways;
}

std::vector<TokenId> TextTokens::OthersIn(absl::Span<const TokenId> text) {
  if (++calls_ == kAlways) {  // begins again
    std::ranges::replace_if(
        met_, [](uint32_t call) { return call != kAlways; }, 0);
    calls_ = 1;
  }
  std::vector<TokenId> others;
  for (const TokenId token : text.last(std::min(text.size(), kText))) {
    uint32_t& met = met_[static_cast<size_t>(token)];
    if (met >= calls_) continue;
    met = calls_;
    others.push_back(token);
  }
  return others;
}

absl::Status TextTokens::SetLogits(absl::Span<const float> state, absl::Span<const TokenId> others,
                                   absl::Span<float> logits) {
  for (const TokenId token : others) {
    const absl::Span<const float> row = OUTRIDER_TRY(RowOf(token, state.size()));
    logits[static_cast<size_t>(token)] = Capped(Dot(state.data(), row.data(), state.size()), softcap_);
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const float>> TextTokens::RowOf(TokenId token, size_t hidden) {
  if (places_.size() == kCached && !places_.contains(token)) {
    places_.clear();
    cached_.clear();
  }
  const auto [found, is_new] = places_.try_emplace(token, cached_.size());
  if (is_new) {
    cached_.resize(cached_.size() + hidden);
    OUTRIDER_TRY(model_.ReadEmbeddings({&token, 1}, absl::MakeSpan(cached_).last(hidden)));
  }
  return absl::MakeConstSpan(cached_).subspan(found->second, hidden);
}

// In 16 parts, for vector instructions.
float Dot(const float* x, const float* y, size_t n) {
  constexpr size_t kParts = 16;
  const size_t whole = n / kParts * kParts;
  float parts[kParts] = {};
  for (size_t i = 0; i < whole; i += kParts) {
    for (size_t p = 0; p < kParts; ++p) parts[p] += x[i + p] * y[i + p];
  }
  float sum = 0;
  for (const float part : parts) sum += part;
  for (size_t i = whole; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

float Capped(float logit, std::optional<double> cap) {
  if (!cap) return logit;
  const float limit = static_cast<float>(*cap);
  return limit * std::tanh(logit / limit);
}

}  // namespace outrider
