#include "coordinator/decode/drafters/suffix_automaton.h"

namespace outrider {
namespace {

// How many states are told of an occurrence that ends at the last token. In a text that repeats one token,
// there is a state to tell for each of its tokens.
constexpr int kMostTold = 32;

}  // namespace

void SuffixAutomaton::Append(TokenId token) {
  const int whole = static_cast<int>(states_.size());
  text_.push_back(token);
  const auto size = static_cast<uint32_t>(text_.size());
  State& made = states_.emplace_back();
  made.length = made.end = size;
  int state = last_;
  while (state >= 0 && states_[state].next.try_emplace(token, whole).second) state = states_[state].link;
  int link = 0;
  if (state >= 0) {
    link = states_[state].next[token];
    const uint32_t length = states_[state].length + 1;
    if (states_[link].length != length) {
      const int parts = Split(link, length);
      for (; state >= 0 && states_[state].next[token] == link; state = states_[state].link) {
        states_[state].next[token] = parts;
      }
      link = parts;
    }
  }
  states_[whole].link = link;
  last_ = whole;
  repeat_ = {states_[link].length, states_[link].end};
  for (int told = 0; link > 0 && told < kMostTold; ++told, link = states_[link].link) {
    states_[link].end = size;
  }
}

int SuffixAutomaton::Split(int from, uint32_t length) {
  const int parts = static_cast<int>(states_.size());
  State copy = states_[from];
  copy.length = length;
  states_.push_back(std::move(copy));
  states_[from].link = parts;
  return parts;
}

}  // namespace outrider
