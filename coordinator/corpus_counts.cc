#include "coordinator/corpus_counts.h"

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
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
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  // Opening a folder succeeds, and reading it fails; so does a file without a single byte.
  if (!file || !(content << file.rdbuf())) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read, or is empty"));
  }
  const std::string text = content.str();
  if (!IsValidUtf8(text)) return absl::InvalidArgumentError(absl::StrCat(path, ": is not UTF-8"));
  return std::make_shared<const CorpusCounts>(tokenizer.Encode(text, /*add_special_tokens=*/false));
}

const CorpusCounts::Counts& CorpusCounts::After(TokenId token) const {
  const auto it = bigrams_.find(token);
  return it == bigrams_.end() ? unigrams_ : it->second;
}

}  // namespace outrider
