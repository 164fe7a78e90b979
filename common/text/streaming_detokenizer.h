// Turns committed tokens into text as they come, never cutting a character.
#pragma once

#include <string>

#include "common/spec/types.h"
#include "common/text/tokenizer.h"
#include "common/text/utf8.h"

namespace outrider {

// The outputs of Append and Flush, joined, equal Tokenizer::Decode of all tokens. Every output is valid
// UTF-8. One per stream; not thread-safe. The tokenizer must outlive it.
class StreamingDetokenizer {
 public:
  StreamingDetokenizer(const Tokenizer* tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // The text that `token` completes, often all of its own. Empty when its bytes end inside a character: they
  // are held back until a later token completes the character or makes it ill-formed (then U+FFFD).
  std::string Append(TokenId token);

  // Ends the text: U+FFFD if it ends inside a character, else nothing. Afterwards the object is as new.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  LossyUtf8Stream stream_;
};

}  // namespace outrider
