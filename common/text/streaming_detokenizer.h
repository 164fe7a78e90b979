// Decodes a stream of tokens into text without splitting a character.
#pragma once

#include <string>

#include "common/spec/types.h"
#include "common/text/tokenizer.h"
#include "common/text/utf8.h"

namespace outrider {

// The concatenated outputs of Append and Flush equal Tokenizer::Decode of all tokens, with the leading space
// that Decode may strip: a stream continues a text. Every output is valid UTF-8. One per stream; not
// thread-safe. The tokenizer must outlive it.
class StreamingDetokenizer {
 public:
  StreamingDetokenizer(const Tokenizer* tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // The text that `token` completes. Bytes of an incomplete character at its end are held back until a later
  // token completes the character or makes it ill-formed (then U+FFFD).
  std::string Append(TokenId token) {
    std::string text;
    if (skip_special_tokens_ && tokenizer_->IsSpecial(token)) return text;
    stream_.Append(tokenizer_->TokenBytes(token), &text);
    return text;
  }

  // Ends the text: returns U+FFFD if it ends inside a character, else nothing. Resets the stream.
  std::string Flush() {
    std::string text;
    stream_.Finish(&text);
    return text;
  }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  LossyUtf8Stream stream_;
};

}  // namespace outrider
