#include "draft_service/lookup.h"

#include <algorithm>
#include <cstddef>

namespace outrider {
namespace {

constexpr size_t kShortestSuffix = 2;
// A longer suffix would seldom choose another occurrence.
constexpr size_t kLongestSuffix = 16;

}  // namespace

std::vector<TokenId> LookUp(std::span<const TokenId> text, int most) {
  if (most <= 0) return {};
  size_t longest = kShortestSuffix - 1, after = 0;
  for (size_t end = text.size(); end-- > kShortestSuffix && longest < kLongestSuffix;) {
    size_t length = 0;
    while (length < std::min(end, kLongestSuffix) &&
           text[end - 1 - length] == text[text.size() - 1 - length]) {
      ++length;
    }
    if (length > longest) {
      longest = length;
      after = end;
    }
  }
  if (after == 0) return {};
  std::vector<TokenId> guess;
  for (size_t i = after; i < after + std::min(static_cast<size_t>(most), longest); ++i) {
    // A text that repeats itself goes on with the guess.
    guess.push_back(i < text.size() ? text[i] : guess[i - text.size()]);
  }
  return guess;
}

}  // namespace outrider
