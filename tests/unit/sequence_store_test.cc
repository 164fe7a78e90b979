// The store of a server's sequences, by itself: leases, rounds, and which sequences make room.
#include "common/engine/sequence/sequence_store.h"

#include <gmock/gmock.h>

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

class SequenceStoreTest : public ::testing::Test {
 protected:
  // An item of a sequence of tokens that no other sequence begins with.
  WorkItem Item(uint64_t id, uint64_t round, int tokens = 3) {
    WorkItem item;
    item.id = Id(id);
    item.round = round;
    for (int i = 0; i < tokens; ++i) item.tokens.push_back(static_cast<TokenId>(10 * id + i % 10));
    item.prefix_hash = kEmptyPrefixHash;
    item.params_hash = 1;
    item.params = std::make_shared<SequenceParams>();
    item.work = VerifyWork{};
    item.answer = [this, id](const Answer& answer) {
      answers_.push_back(id);
      last_ = answer.status;
      last_proposal_ = answer.proposal;
    };
    return item;
  }
  // A sequence with computed tokens; its work is in progress.
  SequenceState* Compute(uint64_t id, int tokens) {
    SequenceState* sequence = store_.Admit(Item(id, 1, tokens));
    EXPECT_NE(sequence, nullptr);
    EXPECT_TRUE(store_.Reserve(*sequence, tokens));
    sequence->MarkComputed(tokens);
    return sequence;
  }

  std::vector<uint64_t> answers_;  // whose items were answered, in order
  absl::Status last_;
  Proposal last_proposal_;
  SequenceStore store_{
      {.context = 100, .vocab = 200, .kv_blocks = kStoreBlocks, .block_size = kStoreBlockSize},
      {.max_sequences = 8, .lease = absl::Seconds(60), .prefix_cache = false},
      [](BlockId, BlockId) {},
      [](std::span<const BlockId>, std::span<const SlotMove>) {}};
};

TEST_F(SequenceStoreTest, WorkInProgressKeepsItsLease) {
  ASSERT_NE(store_.Admit(Item(1, 1)), nullptr);
  store_.Finish(*store_.Admit(Item(2, 1)), absl::OkStatus());
  store_.ExpireLeases(absl::Now() + absl::Hours(1));
  EXPECT_EQ(store_.counts().sequences, 1);
  EXPECT_EQ(store_.counts().in_progress, 1);
}

TEST_F(SequenceStoreTest, AnExpiredSequenceGivesItsBlocksBack) {
  store_.Finish(*Compute(1, 2 * kStoreBlockSize), absl::OkStatus());
  EXPECT_EQ(store_.counts().blocks_used, 2);
  store_.ExpireLeases(absl::Now() + absl::Seconds(59));
  EXPECT_EQ(store_.counts().blocks_used, 2);
  store_.ExpireLeases(absl::Now() + absl::Seconds(61));
  EXPECT_EQ(store_.counts().blocks_used, 0);
  store_.CheckInvariants();
}

TEST_F(SequenceStoreTest, ACancelledItemIsDroppedWithItsProposalAndNotAnswered) {
  WorkItem item = Item(1, 1);
  AppendToChain(5, {}, std::get<VerifyWork>(item.work).proposal);
  SequenceState* sequence = store_.Admit(std::move(item));
  sequence->Append(5);
  store_.Cancel(Id(1), 2);
  EXPECT_TRUE(sequence->active()) << "that was another round";
  store_.Cancel(Id(1), 1);
  EXPECT_THAT(store_.active(), IsEmpty());
  EXPECT_EQ(sequence->tokens().size(), 3u);
  store_.Finish(*store_.Admit(Item(1, 1)), absl::OkStatus());
  EXPECT_THAT(answers_, ElementsAre(1)) << "the same round once more";
}

TEST_F(SequenceStoreTest, ANewerRoundTakesThePlaceOfOneInProgress) {
  store_.Admit(Item(1, 1));
  SequenceState* sequence = store_.Admit(Item(1, 2));
  EXPECT_THAT(answers_, ElementsAre(1));
  EXPECT_EQ(ReasonOf(last_), "ROUND_SUPERSEDED");
  store_.Finish(*sequence, absl::OkStatus());
  EXPECT_TRUE(last_.ok());
  EXPECT_EQ(store_.Admit(Item(1, 1)), nullptr);
  EXPECT_EQ(ReasonOf(last_), "ROUND_STALE");
}

TEST_F(SequenceStoreTest, TheNewestMakesRoomForAnOlderOne) {
  SequenceState* oldest = Compute(1, 2 * kStoreBlockSize);
  SequenceState* middle = Compute(2, 3 * kStoreBlockSize);
  Compute(3, 3 * kStoreBlockSize);
  EXPECT_EQ(store_.counts().blocks_free, 0);
  oldest->Append(7);
  EXPECT_TRUE(store_.Reserve(*oldest, 1));
  EXPECT_THAT(answers_, ElementsAre(3));
  EXPECT_EQ(ReasonOf(last_), "KV_EXHAUSTED");
  EXPECT_TRUE(middle->active());
  EXPECT_EQ(store_.counts().preemptions, 1);
  store_.CheckInvariants();
}

// How far a draft has come when its blocks are taken may depend on its tokens.
TEST_F(SequenceStoreTest, ADraftThatMakesRoomAnswersWithWhatItHas) {
  SequenceState* older = Compute(1, 4 * kStoreBlockSize);
  SequenceState* draft = Compute(2, 4 * kStoreBlockSize);
  AppendToChain(5, {}, draft->answer().proposal);
  draft->Append(5);
  older->Append(7);
  EXPECT_TRUE(store_.Reserve(*older, 1));
  EXPECT_THAT(answers_, ElementsAre(2));
  EXPECT_TRUE(last_.ok()) << last_;
  EXPECT_EQ(last_proposal_.size(), 1u);
  EXPECT_EQ(draft->tokens().size(), 0u);
  store_.CheckInvariants();
}

TEST_F(SequenceStoreTest, ADraftThatFindsNoRoomAnswersWithWhatItHas) {
  Compute(1, 4 * kStoreBlockSize);
  SequenceState* draft = Compute(2, 4 * kStoreBlockSize);
  AppendToChain(5, {}, draft->answer().proposal);
  draft->Append(5);
  EXPECT_FALSE(store_.Reserve(*draft, 1));
  EXPECT_TRUE(last_.ok()) << last_;
  EXPECT_EQ(last_proposal_.size(), 1u);
  store_.CheckInvariants();
}

TEST_F(SequenceStoreTest, TheNewestGivesWayItselfWhereOnlyOlderOnesHoldBlocks) {
  Compute(1, 4 * kStoreBlockSize);
  SequenceState* newest = Compute(2, 4 * kStoreBlockSize);
  newest->Append(7);
  EXPECT_FALSE(store_.Reserve(*newest, 1));
  EXPECT_THAT(answers_, ElementsAre(2));
  EXPECT_EQ(store_.counts().blocks_used, 4);
  store_.CheckInvariants();
}

}  // namespace
}  // namespace outrider
