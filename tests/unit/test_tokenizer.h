// A small tokenizer, for tests in which any tokenizer will do.
#pragma once

#include "common/text/tokenizer.h"

namespace outrider {

inline const Tokenizer& TestTokenizer() {
  static const Tokenizer* tokenizer =
      Tokenizer::Load("tests/data/text/gpt2-small.tokenizer.json").value().release();
  return *tokenizer;
}

}  // namespace outrider
