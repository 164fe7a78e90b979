// The suffix automaton of a growing text. It finds which substrings occur earlier, in time and memory linear
// in the length (Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text"). Used as a
// drafter by Hu et al. 2024, "SAM Decoding" (arXiv 2411.10666).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/spec/types.h"

namespace outrider {

// Not synchronised.
class SuffixAutomaton {
 public:
  // The longest suffix of the text that also occurs earlier: the `length` tokens before `end`, an index into
  // the text.
  struct Repeat {
    size_t length = 0;  // 0: the last token is new
    size_t end = 0;     // of the most recent occurrence, except in texts that repeat a few tokens endlessly
  };

  void Append(TokenId token);
  const std::vector<TokenId>& text() const { return text_; }
  const Repeat& repeat() const { return repeat_; }

 private:
  // The substrings that end at the same places. All are suffixes of the longest of them.
  struct State {
    uint32_t length = 0;  // of the longest substring
    uint32_t end = 0;     // of an occurrence
    int link = -1;        // the state of its longest suffix that also occurs elsewhere; -1 for the empty text
    absl::flat_hash_map<TokenId, int> next;
  };

  // Moves the substrings of state `from` that have at most `length` tokens to a new state. Returns its index.
  int Split(int from, uint32_t length);

  std::vector<State> states_ = std::vector<State>(1);
  int last_ = 0;  // the state of the whole text
  std::vector<TokenId> text_;
  Repeat repeat_;
};

}  // namespace outrider
