#include "common/engine/decoder/frequent_head.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/engine/decoder/field_reader.h"
#include "common/gguf/model_path.h"
#include "common/spec/status.h"

namespace outrider {

absl::StatusOr<std::vector<TokenId>> ReadFrequentTokens(const std::string& model, int count, int vocab_size) {
  const auto parts = LayersAndFile(model);
  const std::filesystem::path file(parts ? parts->first : model);
  const std::string path = ((IsGguf(model) ? file.parent_path() : file) / "frequent_tokens.json").string();
  const nlohmann::json json = OUTRIDER_TRY(JsonObjectIn(path));
  FieldReader fields(path, json);
  std::vector<TokenId> tokens = fields.TokenIds("tokens", vocab_size);
  if (fields.status().ok() && tokens.size() < static_cast<size_t>(count)) {
    fields.Fail("tokens", "are ", tokens.size(), ", fewer than --frequent-tokens ", count);
  }
  OUTRIDER_TRY(fields.status());
  tokens.resize(static_cast<size_t>(count));
  std::sort(tokens.begin(), tokens.end());
  const auto twice = std::adjacent_find(tokens.begin(), tokens.end());
  if (twice != tokens.end()) fields.Fail("tokens", "has ", *twice, " twice");
  OUTRIDER_TRY(fields.status());
  return tokens;
}

FrequentHead::FrequentHead(const TensorSource& whole, const DecoderConfig& spec,
                           absl::Span<const TokenId> tokens)
    : whole_(whole),
      head_(TensorsOf(spec).head.parts[0].name),
      whole_shape_{spec.vocab_size, spec.hidden_size},
      tokens_(tokens) {}

absl::StatusOr<TensorView> FrequentHead::Get(absl::string_view name, absl::Span<const int64_t> shape) const {
  if (!IsCutHead(name, shape)) return whole_.Get(name, shape);
  const TensorView view = OUTRIDER_TRY(whole_.Get(name, whole_shape_));
  const size_t row_bytes = static_cast<size_t>(shape[1]) * view.element_bytes();
  const std::shared_ptr<char[]> rows(new char[tokens_.size() * row_bytes]);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    std::memcpy(rows.get() + i * row_bytes, view.data + static_cast<size_t>(tokens_[i]) * row_bytes,
                row_bytes);
  }
  return TensorView{view.type, {shape.begin(), shape.end()}, rows.get(), rows};
}

void SpreadLogits(absl::Span<const float> logits, absl::Span<const TokenId> tokens, absl::Span<float> to) {
  constexpr float kNever = -1e30f;  // finite, or the row would count as broken
  std::fill(to.begin(), to.end(), kNever);
  for (size_t i = 0; i < tokens.size(); ++i) to[static_cast<size_t>(tokens[i])] = logits[i];
}

}  // namespace outrider
