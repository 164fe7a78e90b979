// Rounds with trees that are repeated, superseded or late, or meet logits that are NaN.
#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

#include "changed_model.h"
#include "common/spec/status.h"
#include "draft_service/draft_sampler.h"
#include "held_sampler.h"
#include "worker_trees_testing.h"

namespace outrider {
namespace {

using testing::AskTree;
using testing::SecondChildren;
using testing::SendTree;
using testing::Text;
using testing::TreeReply;
using testing::WorkerTreesTest;

using WorkerTreeRoundsTest = WorkerTreesTest;

TEST_F(WorkerTreeRoundsTest, TheSameTreeTwiceIsJudgedOnceAndAnotherOneIsAConflict) {
  const std::vector<TokenId> plain = Plain(Text(10), 5);
  const auto worker = Target();
  const WorkItem item = Verify(1, 1, Text(10), 0, SecondChildren(std::span(plain).subspan(10, 3)));
  const TreeReply first = AskTree(*worker, item);
  const int rows = rows_;
  const TreeReply again = AskTree(*worker, item);
  EXPECT_EQ(rows_, rows);
  EXPECT_EQ(again.num_computed, first.num_computed);
  ExpectSame(again, first);
  Proposal other = std::get<VerifyWork>(item.work).proposal;
  other[2].parent = 0;
  EXPECT_EQ(ReasonOf(AskTree(*worker, Verify(1, 1, Text(10), 0, other)).status), "ROUND_CONFLICT");
  EXPECT_EQ(ReasonOf(AskTree(*worker, Verify(1, 0, Text(10), 0, other)).status), "ROUND_STALE");
}

TEST_F(WorkerTreeRoundsTest, AnotherShapeInTheSameRoundIsAConflict) {
  const auto draft = Start({}, std::make_unique<DraftSampler>());
  const TreeReply first = AskTree(*draft, Draft(1, 1, Text(10), 0));
  EXPECT_TRUE(testing::BeginsWith(AskTree(*draft, Draft(1, 1, Text(10), 0)).proposal, first.proposal));
  for (const char* other : {"2x2", "3", "chains:2", "budget:2"}) {
    EXPECT_EQ(ReasonOf(AskTree(*draft, Draft(1, 1, Text(10), 0, other)).status), "ROUND_CONFLICT") << other;
  }
}

TEST_F(WorkerTreeRoundsTest, EachNodeOfABudgetIsAmongTheLikeliestTokensAfterItsPath) {
  const auto draft = Start({}, std::make_unique<DraftSampler>());
  uint64_t id = 0;
  for (int length = 4; length < 16; ++length) {
    const Proposal tree = AskTree(*draft, Draft(++id, 1, Text(length), 0, "budget:9")).proposal;
    ASSERT_EQ(tree.size(), 9u);
    std::vector<std::vector<TokenId>> paths;  // of each node, itself included
    for (const ProposalNode& node : tree) {
      std::vector<TokenId> path = node.parent < 0 ? Text(length) : paths[static_cast<size_t>(node.parent)];
      const Proposal likeliest = AskTree(*draft, Draft(++id, 1, path, 0, "8")).proposal;
      EXPECT_TRUE(std::ranges::count(likeliest, node.token, &ProposalNode::token) == 1)
          << node.token << " after " << path.size() << " tokens";
      path.push_back(node.token);
      paths.push_back(std::move(path));
    }
  }
}

TEST_F(WorkerTreeRoundsTest, ATreeThatIsSupersededOrCancelledLeavesNothingBehind) {
  const std::vector<TokenId> plain = Plain(Text(10), 5);
  const Proposal right = SecondChildren(std::span(plain).subspan(10, 3));
  const Proposal wrong = SecondChildren(std::vector<TokenId>{1, 2, 3, 4, 5, 6});
  const auto hold = std::make_shared<testing::Hold>();
  const auto worker = testing::StartHeldWorker(hold, {});
  std::future<testing::ShortReply> busy = testing::SendShort(*worker, testing::FirstItem(9));
  hold->AwaitReached();
  std::future<TreeReply> superseded = SendTree(*worker, Verify(1, 1, Text(10), 0, wrong));
  std::future<TreeReply> next = SendTree(*worker, Verify(1, 2, Text(10), 0, right));
  std::future<TreeReply> cancelled = SendTree(*worker, Verify(2, 1, Text(10), 0, wrong));
  worker->Cancel({2, ~uint64_t{2}}, 1);
  std::future<TreeReply> after = SendTree(*worker, Verify(2, 2, Text(10), 0, right));
  hold->LetGo();
  EXPECT_EQ(ReasonOf(superseded.get().status), "ROUND_SUPERSEDED");
  EXPECT_THROW(cancelled.get(), std::future_error);
  const TreeReply alone = Alone(Text(10), right);
  ExpectSame(next.get(), alone);
  ExpectSame(after.get(), alone);
}

TEST_F(WorkerTreeRoundsTest, ATreeThatComesTooLateIsRefusedAndMayBeSentAgain) {
  const std::vector<TokenId> plain = Plain(Text(10), 5);
  const Proposal tree = SecondChildren(std::span(plain).subspan(10, 3));
  const auto worker = Target();
  const int rows = rows_;
  WorkItem late = Verify(1, 1, Text(10), 0, tree);
  late.deadline = absl::Now() - absl::Seconds(1);
  const TreeReply refused = AskTree(*worker, std::move(late));
  EXPECT_EQ(ReasonOf(refused.status), "BUDGET_EXCEEDED");
  EXPECT_EQ(rows_, rows) << "it was not begun";
  ExpectSame(AskTree(*worker, Verify(1, 1, Text(10), 0, tree)), Alone(Text(10), tree));
}

TEST_F(WorkerTreeRoundsTest, ADraftWhoseTimeIsOverAnswersWithNothing) {
  const auto draft = Start({}, std::make_unique<DraftSampler>());
  WorkItem late = Draft(1, 1, Text(10), 0);
  late.deadline = absl::Now() - absl::Seconds(1);
  const TreeReply nothing = AskTree(*draft, std::move(late));
  EXPECT_TRUE(nothing.status.ok()) << nothing.status;
  EXPECT_TRUE(nothing.proposal.empty());
  EXPECT_EQ(AskTree(*draft, Draft(1, 2, Text(10), 0)).proposal.size(), 10u);
}

TEST_F(WorkerTreeRoundsTest, ANodeWithoutFiniteLogitsFailsItsItemWhereTheWalkReachesItAndNoOther) {
  const std::vector<TokenId> plain = Plain(Text(10), 5);
  const Proposal tree = SecondChildren(std::span(plain).subspan(10, 3));  // the walk goes along 1, 3 and 5
  const TreeReply alone = Alone(Text(10), tree);
  for (const auto& [node, fails] : {std::pair(0, false), {1, true}, {2, false}, {4, false}, {5, true}}) {
    const auto hold = std::make_shared<testing::Hold>();
    std::atomic<int> broken = -1;  // a row of a step
    const auto worker =
        Start({}, std::make_unique<RejectionSampler>(), testing::ChangedBackend([&](LogitsView logits) {
                hold->Pass();
                if (broken >= 0 && broken < logits.rows)
                  logits.row(broken)[0] = std::numeric_limits<float>::quiet_NaN();
                return absl::OkStatus();
              }));
    std::future<TreeReply> busy = SendTree(*worker, Verify(9, 1, Text(4), 0));
    hold->AwaitReached();
    broken = node + 1;
    std::future<TreeReply> first = SendTree(*worker, Verify(1, 1, Text(10), 0, tree));
    std::future<TreeReply> second = SendTree(*worker, Verify(2, 1, Text(10), 0, tree));
    hold->LetGo();
    ExpectSame(second.get(), alone);
    const TreeReply reply = first.get();
    broken = -1;
    if (fails) {
      EXPECT_EQ(reply.status.code(), absl::StatusCode::kInternal) << "node " << node;
      EXPECT_EQ(reply.num_computed, 10) << "the committed tokens are no worse for it";
      ExpectSame(AskTree(*worker, Verify(1, 1, Text(10), 9, tree)), alone);
    } else {
      ExpectSame(reply, alone);
    }
  }
}

TEST_F(WorkerTreeRoundsTest, ADraftsNodeWithoutFiniteLogitsStaysALeaf) {
  std::atomic<int> width = 0;  // of the level whose first row is broken
  const auto draft =
      Start({}, std::make_unique<DraftSampler>(), testing::ChangedBackend([&](LogitsView logits) {
              if (logits.rows == width) logits.row(0)[0] = std::numeric_limits<float>::quiet_NaN();
              return absl::OkStatus();
            }));
  const Proposal whole = AskTree(*draft, Draft(1, 1, Text(10), 0, "2x2")).proposal;
  ASSERT_EQ(whole.size(), 6u);
  width = 2;
  const TreeReply part = AskTree(*draft, Draft(2, 1, Text(10), 0, "2x2"));
  ASSERT_EQ(part.proposal.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(part.proposal[i].parent, i < 2 ? -1 : 1);
  EXPECT_EQ(part.proposal[3].token, whole[5].token);
  width = 1;
  EXPECT_EQ(AskTree(*draft, Draft(3, 1, Text(10), 0, "2x2")).status.code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace outrider
