// Trees of drafted tokens in a sequence's cache: computed tokens are where a chain would have them.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>
#include <vector>

#include "common/kv/cached_sequence.h"
#include "common/kv/prefix_hash.h"

namespace outrider {
namespace {

// A sequence, and simulated slots. Each slot holds the hash of the tokens that the values in an engine's slot
// would depend on.
class TreeCache {
 public:
  explicit TreeCache(int block_size) : pool_(400), block_size_(block_size), sequence_(&pool_, block_size) {}

  CachedSequence& sequence() { return sequence_; }

  // Computes the next `count` tokens.
  void Compute(int count) {
    const int end = sequence_.num_computed() + count;
    const auto copies = sequence_.Reserve(end);
    ASSERT_TRUE(copies.ok());
    for (const BlockCopy& copy : *copies) {
      for (int s = 0; s < block_size_; ++s) slots_[{copy.to, s}] = slots_[{copy.from, s}];
    }
    for (int i = sequence_.num_computed(); i < end; ++i)
      At(sequence_.table().blocks(), i) = sequence_.prefix_hash(i + 1);
    sequence_.MarkComputed(end);
  }
  void Keep(int n, std::span<const int> path) {
    const std::vector<BlockId> blocks = Blocks();
    Move(blocks, sequence_.Keep(n, path));
  }
  absl::Status Reconcile(uint32_t base, uint64_t hash, std::span<const TokenId> tokens) {
    const std::vector<BlockId> blocks = Blocks();
    auto moves = sequence_.Reconcile(base, hash, tokens);
    if (moves.ok()) Move(blocks, *moves);
    return moves.status();
  }
  // The number of computed tokens that are not where they should be.
  int Misplaced() {
    int misplaced = 0;
    std::vector<TokenId> before;
    for (int i = 0; i < sequence_.num_computed(); ++i) {
      before.push_back(sequence_.tokens()[static_cast<size_t>(i)]);
      misplaced += At(sequence_.table().blocks(), i) == PrefixHash(before) ? 0 : 1;
    }
    return misplaced;
  }

 private:
  std::vector<BlockId> Blocks() const {
    return {sequence_.table().blocks().begin(), sequence_.table().blocks().end()};
  }
  uint64_t& At(std::span<const BlockId> blocks, int index) {
    return slots_[{blocks[static_cast<size_t>(index / block_size_)], index % block_size_}];
  }
  void Move(std::span<const BlockId> blocks, const std::vector<SlotMove>& moves) {
    for (const SlotMove& move : moves) {
      EXPECT_LT(move.to, move.from);
      At(blocks, move.to) = At(blocks, move.from);
    }
  }

  BlockPool pool_;
  const int block_size_;
  CachedSequence sequence_;
  std::map<std::pair<BlockId, int>, uint64_t> slots_;
};

constexpr int kVocab = 3;  // few, so that paths begin alike

TEST(TreeInACache, AnAcceptedPathAndAForeseenOneStayComputedWhereAChainHasThem) {
  std::mt19937 random(5);
  for (int round = 0; round < 400; ++round) {
    TreeCache cache(1 << (random() % 5));
    CachedSequence& sequence = cache.sequence();
    std::vector<TokenId> committed(1 + random() % 20);
    for (TokenId& token : committed) token = static_cast<TokenId>(random() % kVocab);
    ASSERT_TRUE(cache.Reconcile(0, kEmptyPrefixHash, committed).ok());
    cache.Compute(sequence.size());
    for (int step = 0; step < 6; ++step) {
      const int n = sequence.size();
      const int nodes = 1 + static_cast<int>(random() % 20);
      for (int i = 0; i < nodes; ++i) {
        sequence.AppendNode(static_cast<TokenId>(random() % kVocab),
                            static_cast<int>(random() % (i + 1)) - 1);
      }
      ASSERT_EQ(sequence.tree_begin(), n);
      cache.Compute(static_cast<int>(random() % (nodes + 1)));
      const int node = static_cast<int>(random() % (nodes + 1)) - 1;
      const std::vector<TokenId> accepted = sequence.PathTo(node);
      if (random() % 2 == 0) {
        std::vector<int> path;
        for (int i = node; i >= 0; i = sequence.parents()[static_cast<size_t>(i)])
          path.insert(path.begin(), i);
        cache.Keep(n, path);
        ASSERT_EQ(std::vector<TokenId>(sequence.tokens().begin(), sequence.tokens().end()), accepted);
        ASSERT_EQ(cache.Misplaced(), 0);
        if (sequence.num_computed() < sequence.size())
          cache.Compute(sequence.size() - sequence.num_computed());
        continue;
      }
      // The coordinator sends what was committed, and one token more.
      std::vector<TokenId> tokens(accepted.begin() + n, accepted.end());
      tokens.push_back(static_cast<TokenId>(random() % kVocab));
      EXPECT_FALSE(cache.Reconcile(static_cast<uint32_t>(n) + 1, sequence.prefix_hash(n), tokens).ok());
      ASSERT_TRUE(cache.Reconcile(static_cast<uint32_t>(n), sequence.prefix_hash(n), tokens).ok());
      ASSERT_TRUE(sequence.parents().empty());
      ASSERT_EQ(sequence.size(), n + static_cast<int>(tokens.size()));
      ASSERT_LT(sequence.num_computed(), sequence.size()) << "the last token's logits are wanted";
      ASSERT_EQ(cache.Misplaced(), 0);
      cache.Compute(sequence.size() - sequence.num_computed());
    }
  }
}

TEST(TreeInACache, WhatTheDraftComputedOfTheAcceptedPathIsNotComputedAgain) {
  TreeCache cache(4);
  CachedSequence& sequence = cache.sequence();
  ASSERT_TRUE(cache.Reconcile(0, kEmptyPrefixHash, std::vector<TokenId>{7, 8}).ok());
  sequence.AppendNode(1, -1);
  sequence.AppendNode(2, -1);
  sequence.AppendNode(3, 1);
  cache.Compute(5);
  ASSERT_TRUE(cache.Reconcile(2, sequence.prefix_hash(2), std::vector<TokenId>{2, 3, 9}).ok());
  EXPECT_EQ(sequence.num_computed(), 4);
  EXPECT_EQ(cache.Misplaced(), 0);
}

TEST(TreeInACache, ANodesHashIsThatOfItsPath) {
  TreeCache cache(4);
  ASSERT_TRUE(cache.Reconcile(0, kEmptyPrefixHash, std::vector<TokenId>{7, 8, 9}).ok());
  cache.sequence().AppendNode(1, -1);
  cache.sequence().AppendNode(2, -1);
  EXPECT_EQ(cache.sequence().tree_begin(), 3);
  EXPECT_EQ(cache.sequence().prefix_hash(5), PrefixHash(std::vector<TokenId>{7, 8, 9, 2}));
}

}  // namespace
}  // namespace outrider
