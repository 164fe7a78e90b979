#include "coordinator/drafters/copy_drafter.h"

#include <algorithm>
#include <span>

namespace outrider {
namespace {

// How many of the last tokens, up to `limit`, are also those before `end`.
size_t MatchLength(std::span<const TokenId> tokens, size_t end, size_t limit) {
  size_t length = 0;
  while (length < std::min(limit, end) && tokens[end - 1 - length] == tokens[tokens.size() - 1 - length]) {
    ++length;
  }
  return length;
}

}  // namespace

Proposal CopyDrafter::Draft(const Generation& generation, int k) {
  const std::vector<TokenId>& committed = generation.tokens();
  const size_t searched = std::min(committed.size(), static_cast<size_t>(options_.history));
  const std::span<const TokenId> tokens = std::span(committed).last(searched);
  const size_t limit = static_cast<size_t>(options_.max_match);
  // The longest match, and of several the most recent.
  size_t best = 0;
  size_t source = 0;
  for (size_t end = tokens.size() - 1; end > 0 && best < limit; --end) {
    const size_t length = MatchLength(tokens, end, limit);
    if (length > best) {
      best = length;
      source = end;
    }
  }
  std::vector<TokenId> copy;
  if (best > 0) {
    for (int i = 0; i < k; ++i, ++source) {
      copy.push_back(source < tokens.size() ? tokens[source] : copy[source - tokens.size()]);
    }
  }
  return PointMasses(copy, generation.request().params.rule());
}

}  // namespace outrider
