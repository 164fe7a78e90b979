// Finds added tokens (special ones such as <|eot_id|>, and others) written out in text.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/text/regex.h"
#include "common/text/tokenizer_spec.h"

namespace outrider {

// Immutable; may be used from any threads.
class AddedTokens {
 public:
  static absl::StatusOr<std::unique_ptr<const AddedTokens>> Create(std::vector<AddedToken> tokens);

  // Cuts `text` (valid UTF-8) as HF does: leftmost match first, the longest at that place, tokens that are
  // not `normalized` before the others. Calls `found` for each added token and `between` for the text (not
  // empty) between them, in order.
  void Split(std::string_view text, absl::FunctionRef<void(std::string_view)> between,
             absl::FunctionRef<void(TokenId)> found) const;

 private:
  // A tree of the contents' bytes. Node 0 is the root.
  class Trie {
   public:
    // `content` is not empty, nor is `text` below.
    void Add(std::string_view content, int32_t value);
    // The value of the longest content that `text` begins with; -1 if none.
    int32_t LongestPrefix(std::string_view text) const;

   private:
    absl::flat_hash_map<std::pair<int32_t, char>, int32_t> children_;
    std::vector<int32_t> values_ = {-1};
    std::bitset<256> first_bytes_;  // Tells most places in a text apart without a look-up.
  };

  AddedTokens(std::vector<AddedToken> tokens, Regex word_character);

  void SplitBy(const Trie& trie, std::string_view text, absl::FunctionRef<void(std::string_view)> between,
               absl::FunctionRef<void(TokenId)> found) const;
  bool IsSingleWord(std::string_view text, size_t begin, size_t end) const;

  std::vector<AddedToken> tokens_;
  Regex word_character_;
  Trie plain_;
  Trie normalized_;
};

}  // namespace outrider
