#include "coordinator/drafters/ngram_drafter.h"

#include <algorithm>

namespace outrider {

Proposal NgramDrafter::Draft(const Generation& generation, int k) {
  const std::vector<TokenId>& committed = generation.tokens();
  // Of a long prompt only the end would stay in the history.
  const size_t history = static_cast<size_t>(options_.history);
  if (committed.size() > history) counted_ = std::max(counted_, committed.size() - history);
  while (counted_ < committed.size()) table_.Append(committed[counted_++]);

  // Each token of the chain is the context of the next.
  const size_t context = std::min<size_t>(committed.size(), options_.max_context);
  std::vector<TokenId> chain(committed.end() - static_cast<ptrdiff_t>(context), committed.end());
  const size_t longest = context + static_cast<size_t>(std::max(0, std::min(k, options_.max_tokens)));
  while (chain.size() < longest) {
    const std::optional<TokenId> next = table_.Next(chain, options_.min_context);
    if (!next) break;
    chain.push_back(*next);
  }
  chain.erase(chain.begin(), chain.begin() + static_cast<ptrdiff_t>(context));
  return PointMasses(chain, generation.request().params.rule());
}

}  // namespace outrider
