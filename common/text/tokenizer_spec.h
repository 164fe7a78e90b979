// The content of a tokenizer.json as plain data: parsed by tokenizer_json, made into objects by Tokenizer.
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
  bool single_word = false;  // Matches only where no word character is adjacent.
  bool lstrip = false;       // Includes the white space before it.
  bool rstrip = false;       // Includes the white space after it.
  bool normalized = false;   // Matched after the others (there is no normalizer).
};

// One step of splitting text into words.
struct SplitStep {
  enum class Kind { kRegex, kString, kPrefixSpace };
  Kind kind = Kind::kRegex;
  std::string pattern;          // In Oniguruma's syntax; for kString the string itself.
  bool remove_matches = false;  // Drops the matches; by default each is a piece.
  bool remove_between = false;  // Drops the text between matches.
};

struct TokenizerSpec {
  std::vector<std::pair<std::string, TokenId>> vocab;  // The model's, as spelled in the file, sorted by id.
  std::vector<std::pair<std::string, std::string>> merges;  // By rank.
  bool ignore_merges = false;                               // A word that is a token is not split by merges.
  bool has_unknown_token = false;
  std::vector<AddedToken> added;  // Sorted by id; contents and ids are unique.
  std::vector<SplitStep> steps;
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
};

}  // namespace outrider
