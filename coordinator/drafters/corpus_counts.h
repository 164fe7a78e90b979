// How often tokens, and pairs of tokens, occur in a text.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/text/tokenizer.h"

namespace outrider {

// Immutable.
class CorpusCounts {
 public:
  using Counts = absl::flat_hash_map<TokenId, float>;

  explicit CorpusCounts(std::span<const TokenId> tokens);

  // Counts a file of plain text. NOT_FOUND when it cannot be read or is empty, INVALID_ARGUMENT when it is
  // not UTF-8.
  static absl::StatusOr<std::shared_ptr<const CorpusCounts>> Load(const std::string& path,
                                                                  const Tokenizer& tokenizer);

  // Of all tokens; not empty if the text was not.
  const Counts& unigrams() const { return unigrams_; }
  // Of those that follow `token`; all of them where nothing does.
  const Counts& After(TokenId token) const;

 private:
  Counts unigrams_;
  absl::flat_hash_map<TokenId, Counts> bigrams_;
};

}  // namespace outrider
