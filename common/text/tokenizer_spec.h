// What a tokenizer.json says, as plain data: read by tokenizer_json, turned into objects by Tokenizer.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/spec/types.h"

namespace outrider {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;  // Only where no word character is next to it.
  bool lstrip = false;       // Takes the white space before it.
  bool rstrip = false;       // Takes the white space after it.
  bool normalized = false;   // Looked for after the others (there is no normalizer).
};

// One step of cutting text into words.
struct SplitStep {
  enum class Kind { kRegex, kString, kPrefixSpace };
  Kind kind = Kind::kRegex;
  std::string pattern;          // In Oniguruma's syntax, or the string itself.
  bool remove_matches = false;  // Matches are dropped rather than pieces of their own,
  bool remove_between = false;  // or what lies between them is.
};

struct TokenizerSpec {
  std::vector<std::pair<std::string, TokenId>> vocab;  // The model's, as written in the file, sorted by id.
  std::vector<std::pair<std::string, std::string>> merges;  // By rank.
  bool ignore_merges = false;                               // A word that is a token is that token.
  bool has_unknown_token = false;
  std::vector<AddedToken> added;  // Sorted by id; contents and ids are unique.
  std::vector<SplitStep> steps;
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
};

}  // namespace outrider
