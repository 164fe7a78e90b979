#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "common/kv/cached_sequence.h"
#include "common/kv/lease_table.h"
#include "common/kv/prefix_hash.h"

namespace outrider {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(PrefixHash, IsTheDefinitionOfTheWireContract) {
  // Computed independently in Python, from the formula in the header.
  EXPECT_EQ(PrefixHash({}), 0x6f75747269646572u);
  EXPECT_EQ(PrefixHash(std::vector<TokenId>{0}), 0x2588040a92787be6u);
  EXPECT_EQ(PrefixHash(std::vector<TokenId>{1, 2, 3}), 0xabde1bf28e8a48c2u);
  EXPECT_EQ(PrefixHash(std::vector<TokenId>{128255, 0, 4095}), 0x3d3c576c9a6ac640u);
}

TEST(PrefixHash, TellsOrdersAndLengthsApart) {
  EXPECT_NE(PrefixHash(std::vector<TokenId>{1, 2}), PrefixHash(std::vector<TokenId>{2, 1}));
  EXPECT_NE(PrefixHash(std::vector<TokenId>{0}), PrefixHash(std::vector<TokenId>{0, 0}));
}

// One sequence as the target server holds it.
class CachedSequenceTest : public testing::Test {
 protected:
  absl::Status Send(uint32_t base, std::vector<TokenId> tokens, std::vector<TokenId> before) {
    before.resize(base);
    return sequence_.Reconcile(base, PrefixHash(before), tokens).status();
  }
  void FeedAll() {
    ASSERT_TRUE(sequence_.Reserve(sequence_.size()).ok());
    sequence_.MarkComputed(sequence_.size());
  }

  BlockPool pool_{16};
  CachedSequence sequence_{&pool_, 4};
};

TEST_F(CachedSequenceTest, TakesAPromptAtBaseZero) {
  ASSERT_TRUE(Send(0, {7, 8, 9}, {}).ok());
  EXPECT_THAT(sequence_.tokens(), ElementsAre(7, 8, 9));
  EXPECT_EQ(sequence_.num_computed(), 0);
  FeedAll();
  EXPECT_EQ(sequence_.num_computed(), 3);
  EXPECT_EQ(pool_.num_used(), 1);
}

TEST_F(CachedSequenceTest, AppendsBehindWhatItHolds) {
  ASSERT_TRUE(Send(0, {7, 8, 9}, {}).ok());
  FeedAll();
  ASSERT_TRUE(Send(3, {10, 11}, {7, 8, 9}).ok());
  EXPECT_THAT(sequence_.tokens(), ElementsAre(7, 8, 9, 10, 11));
  EXPECT_EQ(sequence_.num_computed(), 3);
}

TEST_F(CachedSequenceTest, TruncatesToALowerBaseFirst) {
  ASSERT_TRUE(Send(0, {7, 8, 9, 10, 11, 12}, {}).ok());
  FeedAll();
  ASSERT_TRUE(Send(2, {20}, {7, 8}).ok());
  EXPECT_THAT(sequence_.tokens(), ElementsAre(7, 8, 20));
  EXPECT_EQ(sequence_.num_computed(), 2);
  EXPECT_EQ(pool_.num_used(), 1);
}

TEST_F(CachedSequenceTest, RefusesABaseBeyondWhatItKnowsAndAnotherPrefixAndKeepsWhatItHas) {
  ASSERT_TRUE(Send(0, {7, 8, 9}, {}).ok());
  FeedAll();
  const absl::Status beyond = Send(4, {1}, {7, 8, 9, 10});
  EXPECT_EQ(beyond.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(beyond.message()), HasSubstr("base_beyond_cached"));
  const absl::Status other = Send(2, {1}, {7, 5});
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.message()), HasSubstr("prefix_mismatch"));
  EXPECT_EQ(Send(3, {}, {7, 8, 9}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(sequence_.tokens(), ElementsAre(7, 8, 9));
  EXPECT_EQ(sequence_.num_computed(), 3);
}

TEST_F(CachedSequenceTest, ALongPromptMayArriveInPiecesBeforeAnyIsFed) {
  ASSERT_TRUE(Send(0, {7, 8}, {}).ok());
  ASSERT_TRUE(Send(2, {9, 10}, {7, 8}).ok());
  EXPECT_THAT(sequence_.tokens(), ElementsAre(7, 8, 9, 10));
  EXPECT_EQ(sequence_.num_computed(), 0);
}

TEST_F(CachedSequenceTest, ADraftIsRolledBackByTheNextBase) {
  ASSERT_TRUE(Send(0, {1, 2, 3}, {}).ok());
  for (TokenId drafted : {4, 5, 6}) sequence_.Append(drafted);
  ASSERT_TRUE(sequence_.Reserve(5).ok());
  sequence_.MarkComputed(5);  // the last drafted token was never computed
  ASSERT_TRUE(Send(4, {9}, {1, 2, 3, 4}).ok());
  EXPECT_THAT(sequence_.tokens(), ElementsAre(1, 2, 3, 4, 9));
  EXPECT_EQ(sequence_.num_computed(), 4);
}

TEST_F(CachedSequenceTest, ResetGivesEverythingBack) {
  ASSERT_TRUE(Send(0, {1, 2, 3, 4, 5}, {}).ok());
  FeedAll();
  sequence_.Reset();
  EXPECT_EQ(pool_.num_used(), 0);
  EXPECT_EQ(sequence_.num_computed(), 0);
  ASSERT_TRUE(Send(0, {1, 2}, {}).ok());
}

TEST_F(CachedSequenceTest, AForkSharesBlocksAndGoesItsOwnWay) {
  ASSERT_TRUE(Send(0, {1, 2, 3, 4, 5, 6}, {}).ok());
  FeedAll();
  CachedSequence fork(&pool_, 4);
  fork.Fork(sequence_, 5);
  EXPECT_EQ(pool_.num_used(), 2);
  EXPECT_EQ(fork.prefix_hash(5), sequence_.prefix_hash(5));
  fork.Append(9);
  const auto copies = fork.Reserve(6);
  ASSERT_TRUE(copies.ok());
  EXPECT_EQ(copies->size(), 1u);
  fork.MarkComputed(6);
  EXPECT_EQ(pool_.num_used(), 3);
}

TEST_F(CachedSequenceTest, AForkOfWhatIsNotCachedYetHasToFeedTheRestItself) {
  ASSERT_TRUE(Send(0, {1, 2, 3, 4, 5, 6}, {}).ok());
  ASSERT_TRUE(sequence_.Reserve(4).ok());
  sequence_.MarkComputed(4);
  CachedSequence fork(&pool_, 4);
  fork.Fork(sequence_, 6);
  EXPECT_EQ(fork.size(), 6);
  EXPECT_EQ(fork.num_computed(), 4);
  EXPECT_EQ(fork.prefix_hash(6), sequence_.prefix_hash(6));
  EXPECT_EQ(pool_.num_used(), 1);
}

TEST(CachedSequence, HashesAndBlocksStayRightUnderRandomItems) {
  std::mt19937 random(5);
  BlockPool pool(64);
  CachedSequence sequence(&pool, 3);
  std::vector<TokenId> truth;
  for (int step = 0; step < 3000; ++step) {
    const uint32_t base = random() % (sequence.size() + 1);
    truth.resize(base);
    std::vector<TokenId> tokens;
    const int count = 1 + random() % 5;
    for (int i = 0; i < count; ++i) tokens.push_back(random() % 7);
    const uint64_t hash = PrefixHash(truth);
    if (base + tokens.size() > 150) continue;
    ASSERT_TRUE(sequence.Reconcile(base, hash, tokens).ok());
    truth.insert(truth.end(), tokens.begin(), tokens.end());
    ASSERT_TRUE(std::equal(truth.begin(), truth.end(), sequence.tokens().begin(), sequence.tokens().end()));
    for (int n = 0; n <= sequence.size(); ++n) {
      ASSERT_EQ(sequence.prefix_hash(n), PrefixHash(std::span(truth).first(n)));
    }
    const int fed = sequence.num_computed() + random() % (sequence.size() - sequence.num_computed() + 1);
    ASSERT_TRUE(sequence.Reserve(fed).ok());
    sequence.MarkComputed(fed);
    ASSERT_LE(sequence.num_computed(), sequence.table().capacity());
    ASSERT_TRUE(pool.CheckInvariants().ok());
    ASSERT_EQ(pool.num_used(), static_cast<int>(sequence.table().blocks().size()));
  }
}

absl::Time At(int seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }
SequenceId Id(uint64_t n) { return {0, n}; }

TEST(LeaseTable, FreesWhatWasNotTouchedInTime) {
  LeaseTable<int> table;
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(*table.Insert(Id(i), At(i), 10 * i), 10 * i);
  table.Touch(Id(1), At(8));
  table.Expire(At(12), absl::Seconds(10));
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(table.Find(Id(2)), nullptr);
  table.Expire(At(17), absl::Seconds(10));
  EXPECT_EQ(table.Find(Id(3)), nullptr);
  EXPECT_EQ(*table.Find(Id(1)), 10) << "it was touched at 8";
  table.Expire(At(18), absl::Seconds(10));
  EXPECT_EQ(table.size(), 0u);
}

TEST(LeaseTable, AReleasedSequenceCannotComeBack) {
  LeaseTable<int> table;
  table.Insert(Id(1), At(0), 5);
  table.Release(Id(1));
  EXPECT_EQ(table.Find(Id(1)), nullptr);
  EXPECT_TRUE(table.released(Id(1)));
  EXPECT_FALSE(table.released(Id(2)));
  table.Release(Id(2));
  EXPECT_TRUE(table.released(Id(2))) << "before it arrived";
}

TEST(LeaseTable, AnExpiredSequenceMayComeBack) {
  LeaseTable<int> table;
  table.Insert(Id(1), At(0), 5);
  table.Expire(At(10), absl::Seconds(10));
  EXPECT_NE(table.Insert(Id(1), At(11), 6), nullptr);
}

TEST(LeaseTable, RemembersABoundedNumberOfReleasedSequences) {
  LeaseTable<int> table(2);
  for (int i = 1; i <= 3; ++i) table.Release(Id(i));
  EXPECT_FALSE(table.released(Id(1)));
  EXPECT_TRUE(table.released(Id(2)));
  EXPECT_TRUE(table.released(Id(3)));
}

TEST(LeaseTable, VisitsTheLeastRecentlyTouchedFirst) {
  LeaseTable<int> table;
  for (int i = 1; i <= 3; ++i) table.Insert(Id(i), At(i), i);
  table.Touch(Id(1), At(4));
  std::vector<int> order;
  table.ForEachOldestFirst([&](const SequenceId&, int& entry) {
    order.push_back(entry);
    return order.size() < 2;
  });
  EXPECT_THAT(order, ElementsAre(2, 3));
}

}  // namespace
}  // namespace outrider
