// Byte-pair encoding of one word: repeatedly merges the pair of lowest rank (Sennrich et al., arXiv
// 1508.07909, over bytes as in GPT-2).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/spec/types.h"
#include "common/text/strings.h"
#include "common/text/tokenizer_spec.h"
#include "common/text/word_cache.h"

namespace outrider {

// Const members are thread-safe.
class BpeModel {
 public:
  // INVALID_ARGUMENT for a merge whose parts or result are not in the vocabulary.
  static absl::StatusOr<std::unique_ptr<const BpeModel>> Create(const TokenizerSpec& spec);

  // Appends the ids of `word` to `out`. O(n log n). A byte or character without a token becomes what the file
  // says, or is dropped, as in HF.
  void Encode(std::string_view word, std::vector<TokenId>* out) const;

 private:
  struct Merge {
    int32_t rank;
    TokenId result;
  };
  class Word;

  BpeModel() = default;

  static constexpr TokenId kNoToken = -1;
  // Appends the tokens that `word` is before any merge.
  void Spell(std::string_view word, std::vector<TokenId>* out) const;
  void SpellCharacter(std::string_view character, std::vector<TokenId>* out) const;

  std::array<TokenId, 256> byte_tokens_;  // kNoToken for a byte without one
  std::optional<StringMap<TokenId>>
      character_tokens_;  // unless tokens are spelled in the byte-level alphabet
  TokenId unknown_ = kNoToken;
  bool fuse_unknown_ = false;
  absl::flat_hash_map<std::pair<TokenId, TokenId>, Merge> merges_;
  StringMap<TokenId> whole_words_;  // By the token's bytes; empty unless ignore_merges is set.
  mutable WordCache cache_;
};

}  // namespace outrider
