// The suffix automaton of a text that grows: which of its parts occur earlier, in time and memory linear in
// its length (Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text"). As a drafter:
// Hu et al. 2024, "SAM Decoding" (arXiv 2411.10666).
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
  // The longest end of the text that also occurs earlier: the `length` tokens before `end`, an index into the
  // text.
  struct Repeat {
    size_t length = 0;  // 0: the last token is new
    size_t end = 0;  // of the most recent such occurrence, but for texts that repeat a few tokens on and on
  };

  void Append(TokenId token);
  const std::vector<TokenId>& text() const { return text_; }
  const Repeat& repeat() const { return repeat_; }

 private:
  // The parts of the text that end at the same places. All are ends of the longest of them.
  struct State {
    uint32_t length = 0;  // of the longest
    uint32_t end = 0;     // of an occurrence
    int link = -1;        // the state of its longest end that also occurs elsewhere; -1: of the empty text
    absl::flat_hash_map<TokenId, int> next;
  };

  // Makes a state of those parts of state `from` that have at most `length` tokens.
  int Split(int from, uint32_t length);

  std::vector<State> states_ = std::vector<State>(1);
  int last_ = 0;  // the state of the whole text
  std::vector<TokenId> text_;
  Repeat repeat_;
};

}  // namespace outrider
