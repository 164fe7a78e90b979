// Finds added tokens in text: special ones such as <|eot_id|>, and others.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/regex.h"
#include "common/text/tokenizer_spec.h"

namespace outrider {

// Immutable and thread-safe.
class AddedTokens {
 public:
  static absl::StatusOr<std::unique_ptr<const AddedTokens>> Create(std::vector<AddedToken> tokens,
                                                                   Normalizer normalizer);

  // A stretch of text between added tokens, normalized. Valid during the call only.
  struct Stretch {
    std::string_view text;
    bool at_start = false;  // whether it begins the whole text
  };
  // Bytes [begin, end) of a text.
  struct Range {
    size_t begin, end;
  };
  // Splits `text` (valid UTF-8) at added tokens as Hugging Face does: the leftmost match wins, then the
  // longest. Tokens that are not `normalized` are matched first. The text between them is normalized, and the
  // other tokens are matched in it. Calls `found` for each added token and `between` for each non-empty
  // stretch between them, in order. Text that overlaps `plain`, ranges in order, is not a special token.
  void Split(std::string_view text, std::span<const Range> plain,
             absl::FunctionRef<void(const Stretch&)> between, absl::FunctionRef<void(TokenId)> found) const;

 private:
  // A trie over the bytes of the tokens' contents. Node 0 is the root.
  class Trie {
   public:
    // `content` must not be empty.
    void Add(std::string_view content, int32_t value);
    // The value of the longest content that `text`, not empty, begins with; -1 if there is none.
    int32_t LongestPrefix(std::string_view text) const;

   private:
    absl::flat_hash_map<std::pair<int32_t, char>, int32_t> children_;
    std::vector<int32_t> values_ = {-1};
    std::bitset<256> first_bytes_;  // Rules out most positions in a text without a lookup.
  };

  // A token, and its text in the form that is searched for.
  struct Entry {
    AddedToken token;
    std::string text;
  };

  AddedTokens(std::vector<AddedToken> tokens, Normalizer normalizer, Regex word_character);

  // `is_plain` tells whether a range of `text` is plain.
  void SplitBy(const Trie& trie, std::string_view text, absl::FunctionRef<bool(Range)> is_plain,
               absl::FunctionRef<void(std::string_view)> between,
               absl::FunctionRef<void(TokenId)> found) const;
  bool IsSingleWord(std::string_view text, size_t begin, size_t end) const;

  std::vector<Entry> entries_;
  Normalizer normalizer_;
  Regex word_character_;
  Trie plain_;
  Trie normalized_;
};

}  // namespace outrider
