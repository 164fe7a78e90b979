#include "common/text/streaming_detokenizer.h"

namespace outrider {

std::string StreamingDetokenizer::Append(TokenId token) {
  std::string text;
  if (skip_special_tokens_ && tokenizer_->IsSpecial(token)) return text;
  stream_.Append(tokenizer_->TokenBytes(token), &text);
  return text;
}

std::string StreamingDetokenizer::Flush() {
  std::string text;
  stream_.Finish(&text);
  return text;
}

}  // namespace outrider
