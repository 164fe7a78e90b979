#include "coordinator/drafters/token_rows.h"

#include <algorithm>

#include "common/kv/prefix_hash.h"
#include "common/spec/random.h"

namespace outrider {
namespace {

void Fill(const CorpusCounts::Counts& counts, std::vector<float>& row) {
  std::fill(row.begin(), row.end(), 0.0F);
  for (const auto& [token, count] : counts) {
    if (static_cast<size_t>(token) < row.size()) row[token] = count;
  }
}

class UnigramRows final : public TokenRows {
 public:
  UnigramRows(const CorpusCounts& corpus, int vocab) : row_(vocab) { Fill(corpus.unigrams(), row_); }
  std::span<const float> Row(size_t /*position*/, TokenId /*previous*/) override { return row_; }

 private:
  std::vector<float> row_;
};

class BigramRows final : public TokenRows {
 public:
  BigramRows(std::shared_ptr<const CorpusCounts> corpus, int vocab)
      : corpus_(std::move(corpus)), row_(vocab) {}
  std::span<const float> Row(size_t /*position*/, TokenId previous) override {
    Fill(corpus_->After(previous), row_);
    return row_;
  }

 private:
  const std::shared_ptr<const CorpusCounts> corpus_;
  std::vector<float> row_;
};

class RandomRows final : public TokenRows {
 public:
  explicit RandomRows(int vocab) : row_(vocab) {}
  std::span<const float> Row(size_t position, TokenId /*previous*/) override {
    // No stream of the request's random numbers: the distribution must not depend on what is drawn from it.
    const uint64_t place = ExtendPrefixHash(kEmptyPrefixHash, static_cast<TokenId>(position));
    for (size_t token = 0; token < row_.size(); ++token) {
      const uint64_t bits = ExtendPrefixHash(place, static_cast<TokenId>(token));
      row_[token] = static_cast<float>(1 - UnitInterval(bits));
    }
    return row_;
  }

 private:
  std::vector<float> row_;
};

}  // namespace

std::unique_ptr<TokenRows> MakeUnigramRows(std::shared_ptr<const CorpusCounts> corpus, int vocab) {
  return std::make_unique<UnigramRows>(*corpus, vocab);
}

std::unique_ptr<TokenRows> MakeBigramRows(std::shared_ptr<const CorpusCounts> corpus, int vocab) {
  return std::make_unique<BigramRows>(std::move(corpus), vocab);
}

std::unique_ptr<TokenRows> MakeRandomRows(int vocab) { return std::make_unique<RandomRows>(vocab); }

}  // namespace outrider
