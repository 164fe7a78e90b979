// A small tokenizer for tests that only need some.
#pragma once

#include "common/text/tokenizer.h"

namespace outrider {

inline const Tokenizer& TestTokenizer() {
  static const Tokenizer* tokenizer =
      Tokenizer::Load("tests/data/text/gpt2-small.tokenizer.json").value().release();
  return *tokenizer;
}

}  // namespace outrider
