#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "common/kv/cached_sequence.h"
#include "common/kv/prefix_hash.h"
#include "common/kv/prefix_index.h"

namespace outrider {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int kBlockSize = 4;

TEST(BlockPool, AKeptBlockIsCachedUntilItsRoomIsNeeded) {
  BlockPool pool(2);
  std::vector<BlockId> evicted;
  pool.OnEvict([&](BlockId block) { evicted.push_back(block); });
  const BlockId kept = *pool.Allocate();
  pool.MarkCacheable(kept);
  EXPECT_FALSE(pool.writable(kept));
  pool.Unref(kept);
  EXPECT_EQ(pool.num_cached(), 1);
  EXPECT_EQ(pool.num_used(), 0);
  EXPECT_EQ(pool.num_available(), 2);
  pool.Ref(kept);
  EXPECT_EQ(pool.num_used(), 1);
  pool.Unref(kept);

  EXPECT_NE(*pool.Allocate(), kept) << "a free block goes first";
  EXPECT_THAT(evicted, IsEmpty());
  EXPECT_EQ(*pool.Allocate(), kept);
  EXPECT_THAT(evicted, ElementsAre(kept));
  EXPECT_TRUE(pool.writable(kept));
  EXPECT_TRUE(pool.CheckInvariants().ok()) << pool.CheckInvariants();
  EXPECT_FALSE(pool.Allocate().ok());
}

TEST(BlockPool, TheBlockThatWasCachedFirstIsEvictedFirst) {
  BlockPool pool(3);
  std::vector<BlockId> blocks;
  for (int i = 0; i < 3; ++i) {
    blocks.push_back(*pool.Allocate());
    pool.MarkCacheable(blocks.back());
  }
  for (int i : {1, 2, 0}) pool.Unref(blocks[i]);
  pool.Ref(blocks[1]);
  pool.Unref(blocks[1]);  // now the most recently used
  for (int i : {2, 0, 1}) EXPECT_EQ(*pool.Allocate(), blocks[i]);
}

class PrefixIndexTest : public ::testing::Test {
 protected:
  CachedSequence Known(const std::vector<TokenId>& tokens) {
    CachedSequence sequence(&pool_, kBlockSize);
    EXPECT_TRUE(sequence.Reconcile(0, kEmptyPrefixHash, tokens).ok());
    return sequence;
  }
  CachedSequence Computed(const std::vector<TokenId>& tokens) {
    CachedSequence sequence = Known(tokens);
    EXPECT_TRUE(sequence.Reserve(sequence.size()).ok());
    sequence.MarkComputed(sequence.size());
    return sequence;
  }

  BlockPool pool_{8};
  PrefixIndex index_{&pool_, kBlockSize};
};

TEST_F(PrefixIndexTest, FindsFullBlocksOfTheSameTokensOnly) {
  const CachedSequence first = Computed({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  PrefixIndex::Cursor cursor;
  index_.Insert(first, 10, cursor);
  EXPECT_EQ(cursor.size(), 2u);
  const auto blocks = first.table().blocks();

  EXPECT_THAT(index_.Find(Known({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), 9).blocks,
              ElementsAre(blocks[0], blocks[1]));
  EXPECT_THAT(index_.Find(Known({1, 2, 3, 4, 5, 6, 7, 8}), 7).blocks, ElementsAre(blocks[0])) << "limit";
  EXPECT_THAT(index_.Find(Known({1, 2, 3, 4, 5, 6, 7, 0, 9}), 8).blocks, ElementsAre(blocks[0]));
  EXPECT_THAT(index_.Find(Known({0, 2, 3, 4, 5, 6, 7, 8, 9}), 8).blocks, IsEmpty());
}

TEST_F(PrefixIndexTest, WhatWasInsertedUnderOneSaltIsNotFoundUnderAnother) {
  const CachedSequence first = Computed({1, 2, 3, 4, 5, 6, 7, 8, 9});
  const CachedSequence second = Computed({1, 2, 3, 4, 5, 6, 7, 8, 9});
  PrefixIndex::Cursor cursor, other;
  index_.Insert(first, 8, cursor, /*salt=*/1);
  EXPECT_THAT(index_.Find(Known({1, 2, 3, 4, 5, 6, 7, 8, 9}), 8, 2).blocks, IsEmpty());
  EXPECT_THAT(index_.Find(Known({1, 2, 3, 4, 5, 6, 7, 8, 9}), 8).blocks, IsEmpty());
  index_.Insert(second, 8, other, /*salt=*/2);
  EXPECT_EQ(index_.Find(Known({1, 2, 3, 4, 5, 6, 7, 8, 9}), 8, 1).blocks.back(), first.table().blocks()[1]);
  EXPECT_EQ(index_.Find(Known({1, 2, 3, 4, 5, 6, 7, 8, 9}), 8, 2).blocks.back(), second.table().blocks()[1]);
}

TEST_F(PrefixIndexTest, WhatIsFoundServesAfterItsSequenceIsGone) {
  {
    const CachedSequence first = Computed({1, 2, 3, 4, 5, 6, 7, 8});
    PrefixIndex::Cursor cursor;
    index_.Insert(first, 8, cursor);
  }
  EXPECT_EQ(pool_.num_used(), 0);
  EXPECT_EQ(pool_.num_cached(), 2);
  CachedSequence second = Known({1, 2, 3, 4, 5, 6, 7, 8, 9});
  second.Adopt(index_.Find(second, 8).blocks);
  EXPECT_EQ(second.num_computed(), 8);
  EXPECT_EQ(pool_.num_used(), 2);
  EXPECT_TRUE(pool_.CheckInvariants().ok());
}

TEST_F(PrefixIndexTest, TruncatingIntoAKeptBlockCopiesItBeforeItIsWritten) {
  CachedSequence sequence = Computed({1, 2, 3, 4, 5, 6, 7, 8});
  PrefixIndex::Cursor cursor;
  index_.Insert(sequence, 8, cursor);
  const BlockId kept = sequence.table().blocks()[1];
  sequence.Truncate(6);
  sequence.Append(99);
  const auto copies = sequence.Reserve(7);
  ASSERT_TRUE(copies.ok());
  EXPECT_THAT(*copies, ElementsAre(BlockCopy{kept, sequence.table().blocks()[1]}));
  EXPECT_EQ(index_.Find(Known({1, 2, 3, 4, 5, 6, 7, 8, 9}), 8).blocks.back(), kept);
}

TEST_F(PrefixIndexTest, AnEvictedBlockIsNotFoundAnyMore) {
  {
    const CachedSequence first = Computed({1, 2, 3, 4, 5, 6, 7, 8});
    PrefixIndex::Cursor cursor;
    index_.Insert(first, 8, cursor);
  }
  const CachedSequence big = Computed(std::vector<TokenId>(28, 7));
  // The big sequence needs seven of eight blocks, so the chain's end was evicted. Its beginning is there.
  EXPECT_EQ(index_.Find(Known({1, 2, 3, 4, 5, 6, 7, 8, 9}), 8).blocks.size(), 1u);
  EXPECT_EQ(index_.size(), 1);
}

TEST_F(PrefixIndexTest, AChainWhoseEndWasEvictedIsMendedByTheNextWhoComputesIt) {
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto compute_and_leave = [&] {
    CachedSequence sequence = Known(tokens);
    auto match = index_.Find(sequence, 9);
    sequence.Adopt(match.blocks);
    ASSERT_TRUE(sequence.Reserve(9).ok());
    sequence.MarkComputed(9);
    index_.Insert(sequence, 9, match.cursor);
  };
  compute_and_leave();
  { const CachedSequence big = Computed(std::vector<TokenId>(28, 7)); }
  EXPECT_EQ(index_.Find(Known(tokens), 8).blocks.size(), 1u);
  compute_and_leave();
  EXPECT_EQ(index_.Find(Known(tokens), 8).blocks.size(), 2u);
}

// Two sequences of two tokens with the same hash. The last step maps h + kStep * (token + 1) one to one, so
// the hashes of the first tokens must differ by a number of steps that second tokens can make up.
std::pair<std::vector<TokenId>, std::vector<TokenId>> Collision() {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15;
  uint64_t inverse = 1;  // of kStep, modulo 2^64
  for (int i = 0; i < 6; ++i) inverse *= 2 - kStep * inverse;
  std::vector<std::pair<uint64_t, TokenId>> steps;
  for (TokenId token = 0; token < 1 << 18; ++token) {
    steps.emplace_back(ExtendPrefixHash(kEmptyPrefixHash, token) * inverse, token);
  }
  std::sort(steps.begin(), steps.end());
  for (size_t i = 1; i < steps.size(); ++i) {
    const uint64_t apart = steps[i].first - steps[i - 1].first;
    if (apart < uint64_t{1} << 31) {
      return {{steps[i - 1].second, static_cast<TokenId>(apart)}, {steps[i].second, 0}};
    }
  }
  return {};
}

TEST_F(PrefixIndexTest, OtherTokensWithTheSameHashAreNotFound) {
  auto [one, other] = Collision();
  ASSERT_NE(one, other);
  ASSERT_EQ(PrefixHash(one), PrefixHash(other));
  for (std::vector<TokenId>* tokens : {&one, &other}) tokens->insert(tokens->end(), {3, 4, 5});
  const CachedSequence first = Computed(one), second = Computed(other);
  PrefixIndex::Cursor cursor;
  index_.Insert(first, 4, cursor);
  EXPECT_THAT(index_.Find(Known(one), 4).blocks, ElementsAre(first.table().blocks()[0]));
  EXPECT_THAT(index_.Find(Known(other), 4).blocks, IsEmpty());
  // The later block takes the place of the earlier one.
  PrefixIndex::Cursor second_cursor;
  index_.Insert(second, 4, second_cursor);
  EXPECT_THAT(index_.Find(Known(other), 4).blocks, ElementsAre(second.table().blocks()[0]));
  EXPECT_THAT(index_.Find(Known(one), 4).blocks, IsEmpty());
}

// Sequences that often share a prefix, over a simulated memory that holds for each position a value computed
// from its prefix: a sequence always reads what it would have computed itself, and the pool's invariants
// hold.
TEST(PrefixIndex, NeverServesAnotherPrefixUnderRandomUse) {
  constexpr int kBlocks = 24;
  std::mt19937 random(3);
  for (int block_size : {1, 3, 4}) {
    BlockPool pool(kBlocks);
    PrefixIndex index(&pool, block_size);
    std::vector<uint64_t> memory(kBlocks * block_size);
    struct Live {
      CachedSequence sequence;
      PrefixIndex::Cursor cursor;
    };
    std::deque<Live> live;
    int64_t hits = 0;
    for (int step = 0; step < 6000; ++step) {
      const int action = random() % 8;
      if (live.empty() || action == 0) {
        std::vector<TokenId> tokens;
        for (int i = 1 + random() % 20; i > 0; --i)
          tokens.push_back(tokens.size() % 5 == 4 ? random() % 2 : 1);
        live.push_back({CachedSequence(&pool, block_size), {}});
        Live& l = live.back();
        ASSERT_TRUE(l.sequence.Reconcile(0, kEmptyPrefixHash, tokens).ok());
        auto match = index.Find(l.sequence, l.sequence.size() - 1);
        l.sequence.Adopt(match.blocks);
        l.cursor = std::move(match.cursor);
        hits += l.sequence.num_computed();
      } else if (action == 1) {
        std::swap(live[random() % live.size()], live.back());
        live.pop_back();
      } else if (action == 2) {
        Live& l = live[random() % live.size()];
        const int n = random() % (l.sequence.size() + 1);
        l.sequence.Truncate(n);
        l.cursor.resize(std::min<size_t>(l.cursor.size(), n / block_size));
      } else {
        Live& l = live[random() % live.size()];
        if (action == 3) l.sequence.Append(random() % 2);
        const int begin = l.sequence.num_computed(), end = l.sequence.size();
        const auto copies = l.sequence.Reserve(end);
        if (!copies.ok()) {
          live.clear();
          continue;
        }
        for (const BlockCopy& copy : *copies) {
          std::copy_n(memory.begin() + copy.from * block_size, block_size,
                      memory.begin() + copy.to * block_size);
        }
        const auto blocks = l.sequence.table().blocks();
        for (int t = begin; t < end; ++t) {
          memory[blocks[t / block_size] * block_size + t % block_size] = l.sequence.prefix_hash(t + 1);
        }
        l.sequence.MarkComputed(end);
        if (random() % 2 == 0) index.Insert(l.sequence, end, l.cursor);
      }
      ASSERT_TRUE(pool.CheckInvariants().ok()) << pool.CheckInvariants();
      for (const Live& l : live) {
        const auto blocks = l.sequence.table().blocks();
        for (int t = 0; t < l.sequence.num_computed(); ++t) {
          ASSERT_EQ(memory[blocks[t / block_size] * block_size + t % block_size],
                    l.sequence.prefix_hash(t + 1));
        }
      }
    }
    EXPECT_GT(hits, 100);
  }
}

}  // namespace
}  // namespace outrider
