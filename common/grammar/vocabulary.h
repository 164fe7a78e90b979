// The vocabularies that grammars are compiled for: the tokens of a model, or bytes.
#pragma once

#include <string>
#include <vector>

#include "common/grammar/grammar.h"
#include "common/text/tokenizer.h"

namespace outrider {

// `vocab_size` is the model's. Its last ids may have no token.
inline GrammarVocabulary VocabularyOf(const Tokenizer& tokenizer, int vocab_size,
                                      const std::vector<TokenId>& end_ids) {
  std::vector<std::string> tokens(static_cast<size_t>(vocab_size));
  for (TokenId id = 0; id < vocab_size; ++id) {
    if (!tokenizer.IsSpecial(id)) tokens[static_cast<size_t>(id)] = tokenizer.TokenBytes(id);
  }
  return {tokens, end_ids};
}

// A vocabulary of all bytes: token b is the byte b, and kEndOfBytes ends a text. A grammar for it is compiled
// in milliseconds, and also tells what must come next.
inline constexpr TokenId kEndOfBytes = 256;
// The most bytes of a grammar that is compiled for BytesVocabulary. The limit bounds the time to compile it
// for a model's tokens: each state of the grammar is compared with all of them, which takes some milliseconds
// per kilobyte for 50,000 tokens.
inline constexpr size_t kMaxGrammarOfBytes = size_t{2} << 20;
inline GrammarVocabulary BytesVocabulary() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < kEndOfBytes; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.emplace_back();
  return {tokens, {kEndOfBytes}};
}

}  // namespace outrider
