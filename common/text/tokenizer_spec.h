// The content of a tokenizer's files, as plain data. A Tokenizer is made from it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/spec/types.h"

namespace outrider {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;  // Matches only where no word character is adjacent.
  bool lstrip = false;       // Includes the white space before it.
  bool rstrip = false;       // Includes the white space after it.
  bool normalized = false;   // Matched after the others, in normalized text.
};

// One step of normalization, which changes text before it is split.
struct NormalizeStep {
  enum class Kind { kNfc, kPrepend, kReplace };
  Kind kind = Kind::kNfc;
  std::string pattern;  // for kReplace
  std::string content;  // what is prepended, or replaces the pattern
};

// The built-in regex of ByteLevel, which is GPT-2's.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// One step of splitting text into words.
struct SplitStep {
  // kPrefixSpace puts the pattern before a word that does not begin with it; kStartSpace only before the
  // first word of a text.
  enum class Kind { kRegex, kString, kPrefixSpace, kStartSpace };
  Kind kind = Kind::kRegex;
  std::string pattern;          // In Oniguruma's syntax for kRegex; for the others the string itself.
  bool remove_matches = false;  // Drops the matches; by default each is a piece.
  bool remove_between = false;  // Drops the text between matches.
  bool join_previous = false;   // A match ends the piece before it.
};

// How tokens spell bytes.
struct Spelling {
  // Whether tokens use the byte-level alphabet (bpe_model.h). Otherwise they spell bytes as they are, except
  // that `space` is a space and "<0x00>" to "<0xFF>" are the bytes of characters without a token.
  bool byte_level = true;
  std::string space;                 // stands for a space
  bool drops_leading_space = false;  // the decoder drops a space that begins a text
};

struct TokenizerSpec {
  std::vector<std::pair<std::string, TokenId>> vocab;  // The model's, as spelled in the file, sorted by id.
  std::vector<std::pair<std::string, std::string>> merges;  // By rank.
  bool ignore_merges = false;                               // A word that is a token is not split by merges.
  std::optional<std::string> unknown_token;                 // for characters without a token
  bool fuse_unknown = false;                                // one unknown token for several in a row
  bool byte_fallback = false;  // A character without a token is spelled in bytes.
  Spelling spelling;
  std::vector<AddedToken> added;  // Sorted by id; contents and ids are unique.
  std::vector<NormalizeStep> normalizer;
  std::vector<SplitStep> steps;
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
};

// The content of a tokenizer.json. INVALID_ARGUMENT, naming the field, if the text is not such a file or
// needs something that TokenizerSpec cannot express.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view json);

// Appends to `spec` the added tokens of the files beside tokenizer.json, as transformers' fast tokenizers do
// when they are loaded (4.57, PreTrainedTokenizerBase._from_pretrained): `added_tokens_decoder` of
// tokenizer_config.json, or without it what added_tokens.json and special_tokens_map.json have; then special
// tokens that are not tokens yet. A token that the vocabulary has keeps its id, others get the next ones.
// INVALID_ARGUMENT, naming the file, if one is damaged.
absl::Status AddTokensFromFolder(const std::string& folder, TokenizerSpec* spec);

}  // namespace outrider
