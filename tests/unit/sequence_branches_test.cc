// Branches in a server's store of sequences: what they begin with, and which sequences make room.
#include <gmock/gmock.h>

#include "common/engine/sequence/sequence_store.h"
#include "common/kv/prefix_hash.h"
#include "common/spec/status.h"
#include "tests/unit/store_testing.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using testing::Id;
using ::testing::IsEmpty;
using testing::kStoreBlocks;
using testing::kStoreBlockSize;

class SequenceBranchesTest : public ::testing::Test {
 protected:
  // An item that drafts after `tokens` tokens, of which the store knows the first `base`.
  WorkItem Item(uint64_t id, int tokens, int base = 0) {
    WorkItem item;
    item.id = Id(id);
    item.round = ++round_;
    item.base = static_cast<uint32_t>(base);
    const std::vector<TokenId> all(static_cast<size_t>(tokens), 7);
    item.tokens.assign(all.begin() + base, all.end());
    item.prefix_hash = PrefixHash(std::span(all).first(static_cast<size_t>(base)));
    item.params_hash = 1;
    if (base == 0) {
      auto params = std::make_shared<SequenceParams>();
      params->cache_salt = id;  // the tokens are the same for all, but none finds those of another
      item.params = std::move(params);
    }
    item.work = ProposeWork{};
    item.answer = [this, id](const Answer& answer) {
      answered_.push_back(id);
      last_ = answer.status;
    };
    return item;
  }
  WorkItem Branch(uint64_t id, uint64_t origin, int tokens, int base) {
    WorkItem item = Item(id, tokens, base);
    item.fork_of = Id(origin);
    item.branch = true;
    return item;
  }
  // Admits an item and computes its tokens; its work is in progress.
  SequenceState* Compute(WorkItem item) {
    SequenceState* sequence = store_.Admit(std::move(item));
    EXPECT_NE(sequence, nullptr);
    if (sequence == nullptr || !store_.Reserve(*sequence, sequence->num_pending())) return nullptr;
    sequence->MarkComputed(sequence->num_pending());
    return sequence;
  }
  void Hold(WorkItem item) { store_.Finish(*Compute(std::move(item)), absl::OkStatus()); }

  uint64_t round_ = 0;
  std::vector<uint64_t> answered_;  // whose items were answered, in order
  absl::Status last_;
  SequenceStore store_{
      {.context = 100, .vocab = 200, .kv_blocks = kStoreBlocks, .block_size = kStoreBlockSize},
      {.max_sequences = 3, .abandoned_after = absl::Hours(1)},
      [](BlockId, BlockId) {},
      [](std::span<const BlockId>, std::span<const SlotMove>) {}};
};

TEST_F(SequenceBranchesTest, ACopyInheritsTheParametersThatItNames) {
  Hold(Item(1, 6));
  SequenceState* branch = store_.Admit(Branch(2, 1, 8, 6));
  ASSERT_NE(branch, nullptr) << last_;
  EXPECT_TRUE(branch->branch());
  EXPECT_EQ(branch->num_pending(), 2);
  EXPECT_EQ(&branch->params(), &store_.Admit(Item(1, 7, 6))->params());
  WorkItem other = Branch(3, 1, 8, 6);
  other.params_hash = 2;
  EXPECT_EQ(store_.Admit(std::move(other)), nullptr);
  EXPECT_EQ(ReasonOf(last_), "PARAMS_UNKNOWN");
  EXPECT_EQ(store_.Admit(Branch(3, 9, 8, 6)), nullptr);
  EXPECT_EQ(ReasonOf(last_), "SEQUENCE_UNKNOWN") << "there is no such origin";
}

TEST_F(SequenceBranchesTest, AnAnswerToABranchIsThatToTheSameItemOfAnotherSequence) {
  WorkItem item = Item(1, 6);
  WorkItem branch = item;
  branch.branch = true;
  store_.Finish(*store_.Admit(std::move(branch)), absl::OkStatus());
  EXPECT_EQ(store_.Admit(std::move(item)), nullptr) << "its answer is known";
  EXPECT_TRUE(last_.ok()) << last_;
}

TEST_F(SequenceBranchesTest, ItEvictsNobody) {
  Hold(Item(1, 6 * kStoreBlockSize));
  Hold(Item(2, 4));
  SequenceState* branch = store_.Admit(Branch(3, 1, 6 * kStoreBlockSize + 5, 6 * kStoreBlockSize));
  ASSERT_NE(branch, nullptr);
  EXPECT_FALSE(store_.Reserve(*branch, 5)) << "one block is free";
  EXPECT_EQ(ReasonOf(last_), "KV_EXHAUSTED");
  EXPECT_EQ(store_.counts().preemptions, 0);
  EXPECT_EQ(branch->num_computed(), 6 * kStoreBlockSize) << "it keeps what it has";
  EXPECT_EQ(store_.Admit(Branch(4, 1, 7, 6)), nullptr);
  EXPECT_EQ(ReasonOf(last_), "SEQUENCES_EXHAUSTED");
  store_.CheckInvariants();
}

TEST_F(SequenceBranchesTest, ItTakesWhatThePrefixCacheHasAndTheNextTakesTheSame) {
  Hold(Item(1, kStoreBlocks * kStoreBlockSize));
  store_.Release(Id(1));
  ASSERT_EQ(store_.counts().blocks_cached, kStoreBlocks);
  for (int number = 2; number < 5; ++number) {
    WorkItem item = Item(number, 4);
    item.branch = true;
    SequenceState* branch = store_.Admit(std::move(item));
    EXPECT_TRUE(store_.Reserve(*branch, 4));
    EXPECT_EQ(store_.counts().blocks_cached, kStoreBlocks - 1);
    store_.Release(Id(number));
    EXPECT_EQ(store_.counts().blocks_free, 1);
  }
}

TEST_F(SequenceBranchesTest, WhatItLeavesBehindIsFree) {
  Hold(Item(1, 6));
  Hold(Branch(2, 1, 20, 6));
  store_.Release(Id(2));
  EXPECT_EQ(store_.counts().blocks_used, 2);
  EXPECT_EQ(store_.counts().blocks_cached, 0);
  store_.CheckInvariants();
}

TEST_F(SequenceBranchesTest, ItAnswersWithWhatItHasDraftedWhenBlocksRunOut) {
  Hold(Item(1, 7 * kStoreBlockSize));
  SequenceState* branch = Compute(Branch(2, 1, 7 * kStoreBlockSize + 4, 7 * kStoreBlockSize));
  AppendToChain(5, {}, branch->answer().proposal);
  branch->Append(5);
  EXPECT_FALSE(store_.Reserve(*branch, 1));
  EXPECT_THAT(answered_, ElementsAre(1, 2));
  EXPECT_TRUE(last_.ok()) << last_;
  store_.CheckInvariants();
}

TEST_F(SequenceBranchesTest, OthersTakeItsBlocksBeforeThoseOfAnyOther) {
  Hold(Item(1, 3 * kStoreBlockSize));
  Hold(Item(2, 4));
  Hold(Branch(3, 1, 6 * kStoreBlockSize + 2, 3 * kStoreBlockSize));
  ASSERT_EQ(store_.counts().blocks_free, 0);
  ASSERT_NE(Compute(Item(2, 4 + 2 * kStoreBlockSize, 4)), nullptr);
  EXPECT_EQ(store_.counts().preemptions, 0) << "nobody waits for a branch";
  EXPECT_NE(store_.Admit(Item(1, 3 * kStoreBlockSize + 1, 3 * kStoreBlockSize)), nullptr) << last_;
  EXPECT_EQ(store_.Admit(Item(3, 30, 29)), nullptr);
  EXPECT_EQ(ReasonOf(last_), "BASE_BEYOND_CACHED");
  store_.CheckInvariants();
}

TEST_F(SequenceBranchesTest, OthersTakeItsPlace) {
  Hold(Item(1, 6));
  Hold(Item(2, 6));
  ASSERT_NE(store_.Admit(Branch(3, 1, 8, 6)), nullptr);
  answered_.clear();
  EXPECT_NE(store_.Admit(Item(4, 6)), nullptr);
  EXPECT_THAT(answered_, ElementsAre(3)) << "its work ended";
  EXPECT_EQ(ReasonOf(last_), "KV_EXHAUSTED");
  EXPECT_EQ(store_.counts().sequences, 3);
  store_.CheckInvariants();
}

// A branch that takes over from an old sequence is as old, and not the newest one.
TEST_F(SequenceBranchesTest, ItIsAsOldAsItsOrigin) {
  Hold(Item(1, 2 * kStoreBlockSize));
  Hold(Item(2, 5 * kStoreBlockSize));
  Hold(Branch(3, 1, 2 * kStoreBlockSize + 2, 2 * kStoreBlockSize));
  store_.Promote(Id(3), absl::InfiniteFuture());
  store_.Release(Id(1));
  ASSERT_NE(Compute(Item(3, 2 * kStoreBlockSize + 5, 2 * kStoreBlockSize)), nullptr)
      << "the newer one made room";
  EXPECT_EQ(store_.Admit(Item(2, 30, 20)), nullptr);
  EXPECT_EQ(ReasonOf(last_), "BASE_BEYOND_CACHED");
}

TEST_F(SequenceBranchesTest, PromotionMakesItAnOrdinarySequence) {
  Hold(Item(1, 6));
  SequenceState* branch = store_.Admit(Branch(2, 1, 8, 6));
  const absl::Time deadline = absl::Now() + absl::Hours(1);
  store_.Promote(Id(2), deadline);
  EXPECT_FALSE(branch->branch());
  EXPECT_TRUE(branch->active());
  EXPECT_EQ(branch->deadline(), deadline);
  store_.Promote(Id(9), deadline);
}

TEST_F(SequenceBranchesTest, AnItemWithoutAssumptionMakesItAnOrdinarySequence) {
  Hold(Item(1, 6));
  Hold(Branch(2, 1, 8, 6));
  EXPECT_FALSE(store_.Admit(Item(2, 9, 8))->branch());
}

TEST_F(SequenceBranchesTest, AReleasedOneDisappearsWithItsWork) {
  Hold(Item(1, 6));
  store_.Admit(Branch(2, 1, 8, 6));
  answered_.clear();
  store_.Release(Id(2));
  EXPECT_THAT(store_.active(), IsEmpty());
  EXPECT_THAT(answered_, IsEmpty());
  EXPECT_NE(store_.Admit(Item(2, 6)), nullptr) << "its id was not remembered";
  store_.CheckInvariants();
}

TEST_F(SequenceBranchesTest, ADrawnTokenCountsAsCommittedAndIsNotLostForLackOfBlocks) {
  Hold(Item(1, 7 * kStoreBlockSize));
  WorkItem item = Branch(2, 1, 7 * kStoreBlockSize + 4, 7 * kStoreBlockSize);
  TokenId told = -1;
  item.on_next = [&](TokenId next) { told = next; };
  SequenceState* branch = Compute(std::move(item));
  branch->CommitNext(5);
  EXPECT_EQ(told, 5);
  EXPECT_EQ(branch->committed(), 7 * kStoreBlockSize + 5);
  EXPECT_FALSE(store_.Reserve(*branch, 1));
  EXPECT_TRUE(last_.ok()) << last_;
  store_.CheckInvariants();
}

}  // namespace
}  // namespace outrider
