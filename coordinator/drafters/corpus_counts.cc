#include "coordinator/drafters/corpus_counts.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "common/text/read_file.h"
#include "common/text/utf8.h"

namespace outrider {

CorpusCounts::CorpusCounts(std::span<const TokenId> tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    ++unigrams_[tokens[i]];
    if (i > 0) ++bigrams_[tokens[i - 1]][tokens[i]];
  }
}

absl::StatusOr<std::shared_ptr<const CorpusCounts>> CorpusCounts::Load(const std::string& path,
                                                                       const Tokenizer& tokenizer) {
  const std::optional<std::string> text = ReadFile(path);
  if (!text) return absl::NotFoundError(absl::StrCat(path, ": cannot be read, or is empty"));
  if (!IsValidUtf8(*text)) return absl::InvalidArgumentError(absl::StrCat(path, ": is not UTF-8"));
  auto tokens = tokenizer.Encode(*text, /*add_special_tokens=*/false);
  if (!tokens.ok())
    return absl::Status(tokens.status().code(), absl::StrCat(path, ": ", tokens.status().message()));
  return std::make_shared<const CorpusCounts>(*tokens);
}

const CorpusCounts::Counts& CorpusCounts::After(TokenId token) const {
  const auto it = bigrams_.find(token);
  return it == bigrams_.end() ? unigrams_ : it->second;
}

}  // namespace outrider
