// What grammars are compiled for: the tokens of a model, or bytes.
#pragma once

#include <string>
#include <vector>

#include "common/grammar/grammar.h"
#include "common/text/tokenizer.h"

namespace outrider {

// `vocab_size` is that of the model, whose last ids may have no token.
inline GrammarVocabulary VocabularyOf(const Tokenizer& tokenizer, int vocab_size,
                                      const std::vector<TokenId>& end_ids) {
  std::vector<std::string> tokens(static_cast<size_t>(vocab_size));
  for (TokenId id = 0; id < vocab_size; ++id) {
    if (!tokenizer.IsSpecial(id)) tokens[static_cast<size_t>(id)] = tokenizer.TokenBytes(id);
  }
  return {tokens, end_ids};
}

// A vocabulary of all bytes, by their values, and kEndOfBytes, which ends a text. A grammar for it is
// compiled in milliseconds, and says as well what must come next.
inline constexpr TokenId kEndOfBytes = 256;
// The most that a grammar may have when it is compiled for them. It bounds the time that a model's tokens
// take: each state of the grammar is compared with all of them, which is some milliseconds a kilobyte for
// 50,000.
inline constexpr size_t kMaxGrammarOfBytes = size_t{2} << 20;
inline GrammarVocabulary BytesVocabulary() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < kEndOfBytes; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.emplace_back();
  return {tokens, {kEndOfBytes}};
}

}  // namespace outrider
