// Encodes a text with a tokenizer, and decodes it again.
#include "common/text/strings.h"
#include "common/text/tokenizer.h"
#include "common/text/utf8.h"
#include "tests/fuzz/target.h"

namespace outrider {

void FuzzTarget(std::string_view input) {
  static const auto tokenizer = Tokenizer::Load("tests/data/text/gpt2-small.tokenizer.json").value();
  const std::vector<TokenId> tokens = tokenizer->Encode(input, /*add_special_tokens=*/false).value();
  Require(tokenizer->Decode(tokens, /*skip_special_tokens=*/false) == LossyUtf8(input),
          "text comes back as it was");
  StreamingDetokenizer stream(tokenizer.get(), /*skip_special_tokens=*/false);
  std::string streamed;
  for (const TokenId token : tokens) {
    const std::string piece = stream.Append(token);
    Require(IsValidUtf8(piece), "no character is cut");
    streamed += piece;
  }
  Require(streamed + stream.Flush() == LossyUtf8(input), "a stream has the same text");
}

}  // namespace outrider
