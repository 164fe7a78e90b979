#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "common/kv/block_pool.h"
#include "common/kv/cached_sequence.h"

namespace outrider {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(BlockPool, HandsOutEachBlockOnceAndThenNoMore) {
  BlockPool pool(3);
  EXPECT_EQ(*pool.Allocate(), 0);
  EXPECT_EQ(*pool.Allocate(), 1);
  EXPECT_EQ(*pool.Allocate(), 2);
  EXPECT_EQ(pool.Allocate().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.num_used(), 3);
  EXPECT_TRUE(pool.CheckInvariants().ok());
}

TEST(BlockPool, ABlockIsFreeWhenItsLastReferenceGoes) {
  BlockPool pool(1);
  const BlockId block = *pool.Allocate();
  pool.Ref(block);
  pool.Unref(block);
  EXPECT_EQ(pool.num_free(), 0);
  pool.Unref(block);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(*pool.Allocate(), block);
}

TEST(BlockPoolDeathTest, AReferenceTooFewStopsTheProcess) {
  BlockPool pool(1);
  EXPECT_DEATH(pool.Unref(0), "broken invariant");
  EXPECT_DEATH(pool.Ref(0), "broken invariant");
  EXPECT_DEATH(pool.Unref(7), "broken invariant");
}

TEST(BlockTable, GrowsByWholeBlocksAndTruncatesToTheBlocksInUse) {
  BlockPool pool(10);
  BlockTable table(&pool, 4);
  ASSERT_THAT(*table.Reserve(0, 5), IsEmpty());
  EXPECT_EQ(table.capacity(), 8);
  ASSERT_TRUE(table.Reserve(5, 8).ok());
  EXPECT_EQ(pool.num_used(), 2);
  ASSERT_TRUE(table.Reserve(8, 9).ok());
  EXPECT_EQ(pool.num_used(), 3);
  table.Truncate(8);
  EXPECT_EQ(pool.num_used(), 2);
  table.Truncate(1);
  EXPECT_EQ(pool.num_used(), 1);
  table.Clear();
  EXPECT_EQ(pool.num_used(), 0);
}

TEST(BlockTable, AReservationThatDoesNotFitChangesNothing) {
  BlockPool pool(3);
  BlockTable table(&pool, 4);
  ASSERT_TRUE(table.Reserve(0, 4).ok());
  EXPECT_EQ(table.BlocksNeeded(4, 17), 4);
  EXPECT_EQ(table.Reserve(4, 17).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.num_used(), 1);
  EXPECT_EQ(table.capacity(), 4);
}

TEST(BlockTable, WritingIntoASharedBlockCopiesItFirst) {
  BlockPool pool(10);
  BlockTable first(&pool, 4), second(&pool, 4);
  ASSERT_TRUE(first.Reserve(0, 6).ok());
  second.Fork(first, 6);
  EXPECT_EQ(pool.num_used(), 2);
  const BlockId shared = first.blocks()[1];
  const auto copies = second.Reserve(6, 7);
  ASSERT_TRUE(copies.ok());
  EXPECT_THAT(*copies, ElementsAre(BlockCopy{shared, second.blocks()[1]}));
  EXPECT_NE(second.blocks()[1], shared);
  EXPECT_EQ(second.blocks()[0], first.blocks()[0]);
  EXPECT_THAT(*first.Reserve(6, 7), IsEmpty()) << "the last owner writes in place";
}

TEST(BlockTable, TruncatingIntoASharedBlockCopiesItWhenItIsWritten) {
  BlockPool pool(10);
  BlockTable first(&pool, 4), second(&pool, 4);
  ASSERT_TRUE(first.Reserve(0, 8).ok());
  second.Fork(first, 8);
  second.Truncate(2);
  EXPECT_EQ(pool.num_used(), 2);
  const BlockId shared = first.blocks()[0];
  EXPECT_THAT(*second.Reserve(2, 3), ElementsAre(BlockCopy{shared, 2}));
}

TEST(BlockTable, ASharedBlockThatIsOverwrittenFromItsStartIsNotCopied) {
  BlockPool pool(10);
  BlockTable first(&pool, 4), second(&pool, 4);
  ASSERT_TRUE(first.Reserve(0, 4).ok());
  second.Fork(first, 4);
  EXPECT_THAT(*second.Reserve(0, 4), IsEmpty());
  EXPECT_NE(second.blocks()[0], first.blocks()[0]);
}

TEST(BlockTable, MovingPassesTheBlocksOn) {
  BlockPool pool(4);
  BlockTable first(&pool, 4);
  ASSERT_TRUE(first.Reserve(0, 8).ok());
  BlockTable second(std::move(first));
  EXPECT_EQ(pool.num_used(), 2);
  BlockTable third(&pool, 4);
  ASSERT_TRUE(third.Reserve(0, 4).ok());
  third = std::move(second);
  EXPECT_EQ(pool.num_used(), 2);
  EXPECT_EQ(third.capacity(), 8);
}

// Random forks, truncations and writes of tables over a simulated memory: each table always reads back what
// was written through it, and the pool's invariants hold.
TEST(BlockTable, SharingNeverLetsOneSequenceSeeAnothersWrites) {
  constexpr int kBlocks = 40;
  std::mt19937 random(11);
  for (int block_size : {1, 3, 4}) {
    BlockPool pool(kBlocks);
    std::vector<int> memory(kBlocks * block_size, -1);
    struct Sequence {
      BlockTable table;
      std::vector<int> content;
    };
    std::deque<Sequence> sequences;
    int next_value = 0;
    for (int step = 0; step < 4000; ++step) {
      const int action = random() % 10;
      if (sequences.empty() || action == 0) {
        sequences.push_back({BlockTable(&pool, block_size), {}});
      } else if (action == 1) {
        std::swap(sequences[random() % sequences.size()], sequences.back());
        sequences.pop_back();
      } else if (action == 2) {
        const Sequence& from = sequences[random() % sequences.size()];
        const int n = random() % (from.content.size() + 1);
        Sequence fork{BlockTable(&pool, block_size), {from.content.begin(), from.content.begin() + n}};
        fork.table.Fork(from.table, n);
        sequences.push_back(std::move(fork));
      } else if (action <= 4) {
        Sequence& s = sequences[random() % sequences.size()];
        s.content.resize(random() % (s.content.size() + 1));
        s.table.Truncate(static_cast<int>(s.content.size()));
      } else {
        Sequence& s = sequences[random() % sequences.size()];
        const int begin = static_cast<int>(s.content.size()), end = begin + random() % 6;
        const int needed = s.table.BlocksNeeded(begin, end), free = pool.num_free();
        const auto copies = s.table.Reserve(begin, end);
        ASSERT_EQ(copies.ok(), needed <= free);
        if (copies.ok()) {
          for (const BlockCopy& copy : *copies) {
            std::copy_n(memory.begin() + copy.from * block_size, block_size,
                        memory.begin() + copy.to * block_size);
          }
          for (int t = begin; t < end; ++t) {
            s.content.push_back(next_value);
            memory[s.table.blocks()[t / block_size] * block_size + t % block_size] = next_value++;
          }
        }
      }
      ASSERT_TRUE(pool.CheckInvariants().ok()) << pool.CheckInvariants();
      std::map<BlockId, int> references;
      for (const Sequence& s : sequences) {
        for (BlockId block : s.table.blocks()) ++references[block];
        for (size_t t = 0; t < s.content.size(); ++t) {
          ASSERT_EQ(memory[s.table.blocks()[t / block_size] * block_size + t % block_size], s.content[t]);
        }
      }
      ASSERT_EQ(static_cast<int>(references.size()), pool.num_used());
      for (const auto& [block, count] : references) ASSERT_EQ(pool.ref_count(block), count);
    }
    sequences.clear();
    EXPECT_EQ(pool.num_used(), 0);
  }
}

}  // namespace
}  // namespace outrider
