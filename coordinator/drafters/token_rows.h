// Where a drafter that samples without a model has its distributions from.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "coordinator/drafters/corpus_counts.h"

namespace outrider {

class TokenRows {
 public:
  virtual ~TokenRows() = default;
  // Weights over the vocabulary of the token at `position` that follows `previous`, [vocab], with a positive
  // sum. Valid until the next call.
  virtual std::span<const float> Row(size_t position, TokenId previous) = 0;
};

// The frequency of each token in a text.
std::unique_ptr<TokenRows> MakeUnigramRows(std::shared_ptr<const CorpusCounts> corpus, int vocab);
// The frequency of each token after the previous one.
std::unique_ptr<TokenRows> MakeBigramRows(std::shared_ptr<const CorpusCounts> corpus, int vocab);
// Weights that know nothing: each a uniform number that the position and the token determine.
std::unique_ptr<TokenRows> MakeRandomRows(int vocab);

}  // namespace outrider
