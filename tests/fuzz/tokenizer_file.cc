// Parses tokenizer.json, and encodes and decodes a text with it.
#include "common/text/tokenizer.h"
#include "tests/fuzz/target.h"

namespace outrider {

void FuzzTarget(std::string_view input) {
  const auto tokenizer = Tokenizer::Parse(input, "tokenizer.json");
  if (!tokenizer.ok()) return;
  const auto tokens =
      (*tokenizer)->Encode("The  <word>\n1234's \u4e2d\xFF aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", true);
  if (!tokens.ok()) return;
  for (const TokenId token : *tokens) {
    Require(token >= 0 && token < (*tokenizer)->vocab_size(), "a token is in the vocabulary");
  }
  (*tokenizer)->Decode(*tokens, /*skip_special_tokens=*/true);
}

}  // namespace outrider
