// Drafts that need no model, to compare a draft model with (Leviathan et al., arXiv 2211.17192, section 3.6).
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "common/kv/prefix_hash.h"
#include "common/spec/proposal.h"
#include "common/spec/random.h"
#include "common/spec/verify.h"

namespace outrider {

// Weights over the vocabulary of the token at `position` that follows `previous`, [vocab], with a positive
// sum.
using TokenRows = std::function<std::vector<float>(size_t position, TokenId previous)>;

// Counts of tokens, and of pairs of tokens, in a text that is not empty.
class CorpusCounts {
 public:
  CorpusCounts(std::span<const TokenId> text, int vocab) : vocab_(static_cast<size_t>(vocab)) {
    for (size_t i = 0; i < text.size(); ++i) {
      ++unigrams_[text[i]];
      if (i > 0) ++bigrams_[text[i - 1]][text[i]];
    }
  }

  std::vector<float> Unigrams() const { return RowOf(unigrams_); }
  // Weights of the tokens that follow `previous`, or of all tokens if none does.
  std::vector<float> Bigrams(TokenId previous) const {
    const auto found = bigrams_.find(previous);
    return RowOf(found == bigrams_.end() ? unigrams_ : found->second);
  }

 private:
  using Counts = std::map<TokenId, float>;

  std::vector<float> RowOf(const Counts& counts) const {
    std::vector<float> row(vocab_);
    for (const auto& [token, count] : counts) {
      if (static_cast<size_t>(token) < vocab_) row[token] = count;
    }
    return row;
  }

  const size_t vocab_;
  Counts unigrams_;
  std::map<TokenId, Counts> bigrams_;
};

// Uninformed weights: uniform numbers, determined by position and token.
inline std::vector<float> RandomRow(size_t position, int vocab) {
  // Not from the request's random numbers: the distribution must not depend on what is drawn from it.
  const uint64_t place = ExtendPrefixHash(kEmptyPrefixHash, static_cast<TokenId>(position));
  std::vector<float> row;
  for (TokenId token = 0; token < vocab; ++token) {
    row.push_back(static_cast<float>(1 - UnitInterval(ExtendPrefixHash(place, token))));
  }
  return row;
}

// A chain of k tokens after the committed ones. Each is drawn from q, the heaviest tokens of its row, as many
// as the draft service keeps by default; if `greedy`, it is the heaviest.
inline Proposal DraftFromRows(const TokenRows& rows, std::span<const TokenId> committed, int k,
                              const RandomKey& key, bool greedy) {
  constexpr int kTopN = 64;
  Proposal proposal;
  TokenId previous = committed.back();
  for (int i = 0; i < k; ++i) {
    const size_t position = committed.size() + static_cast<size_t>(i);
    const std::vector<float> weights = rows(position, previous);
    WeightRow row{.weights = weights, .total = SumWeights(weights)};
    if (greedy) row.point_mass = static_cast<TokenId>(std::ranges::max_element(weights) - weights.begin());
    Distribution q = TruncateTopN(row, kTopN);
    previous = DraftSample(q, key, position, committed.size());
    AppendToChain(previous, std::move(q), proposal);
  }
  return proposal;
}

}  // namespace outrider
