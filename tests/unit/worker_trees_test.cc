// What becomes of a tree in a worker when its sequence is preempted, cut into chunks, copied, superseded.
#include <atomic>
#include <limits>

#include "changed_model.h"
#include "common/spec/status.h"
#include "draft_service/draft_sampler.h"
#include "held_sampler.h"
#include "worker_trees_testing.h"

namespace outrider {
namespace {

using testing::AskTree;
using testing::Certain;
using testing::SameVerdicts;
using testing::SecondChildren;
using testing::SendTree;
using testing::TreeItem;
using testing::TreeReply;

std::vector<TokenId> Text(int n, int salt = 0) {
  std::vector<TokenId> tokens(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) tokens[static_cast<size_t>(i)] = (i * 37 + salt * 11 + 5) % 256;
  return tokens;
}

class WorkerTreesTest : public ::testing::Test {
 protected:
  struct Options {
    int kv_blocks = 256;
    int max_batch_rows = 128;
    bool prefix_cache = true;
  };

  std::unique_ptr<Worker> Start(const Options& options, std::unique_ptr<Sampler> sampler,
                                const Backend& backend = **BackendFor("native", "cpu")) {
    auto runner = Runner::Load(testing::TreeModel(options.kv_blocks, 4, options.max_batch_rows), backend);
    EXPECT_TRUE(runner.ok()) << runner.status();
    return std::make_unique<Worker>(
        *std::move(runner), std::move(sampler),
        WorkerOptions{.max_batch_rows = options.max_batch_rows,
                      .sequences = {.prefix_cache = options.prefix_cache},
                      .check_invariants = true},
        Worker::Hooks{
            .on_step =
                [this](const StepStats& step) {
                  rows_ += step.rows;
                  most_rows_ = std::max(most_rows_.load(), step.rows);
                },
            .on_state = [this](const SequenceStoreCounts& counts) { preemptions_ = counts.preemptions; }});
  }
  std::unique_ptr<Worker> Target(const Options& options) {
    return Start(options, std::make_unique<RejectionSampler>());
  }
  std::unique_ptr<Worker> Target() { return Target(Options()); }

  WorkItem Verify(uint64_t id, uint64_t round, std::span<const TokenId> tokens, int base,
                  Proposal tree = {}) {
    return TreeItem(id, round, tokens, base, greedy_, VerifyWork{.proposal = std::move(tree)});
  }
  WorkItem Draft(uint64_t id, uint64_t round, std::span<const TokenId> tokens, int base,
                 const char* shape = "2x2x1") {
    return TreeItem(id, round, tokens, base, greedy_,
                    ProposeWork{.draft_tokens = 3, .tree = *ParseTreeShape(shape)});
  }

  // The text and `more` tokens that plain decoding adds.
  std::vector<TokenId> Plain(std::vector<TokenId> text, int more) {
    const auto worker = Target({.prefix_cache = false});
    for (int i = 0; i < more; ++i) {
      const TreeReply reply = AskTree(*worker, Verify(static_cast<uint64_t>(i), 1, text, 0));
      EXPECT_TRUE(reply.verdict.has_value()) << reply.status;
      if (reply.verdict) text.push_back(reply.verdict->token);
    }
    return text;
  }
  // What an item with all of `tokens` gets where nothing else was ever asked.
  TreeReply Alone(std::span<const TokenId> tokens, Proposal tree = {}) {
    return AskTree(*Target(), Verify(1, 1, tokens, 0, std::move(tree)));
  }
  static void ExpectSame(const TreeReply& reply, const TreeReply& expected) {
    ASSERT_TRUE(reply.status.ok()) << reply.status;
    EXPECT_TRUE(SameVerdicts(*reply.verdict, *expected.verdict));
  }

  const std::shared_ptr<const SequenceParams> greedy_ = [] {
    SequenceParams params{.prompt_length = 4, .draft_top_n = 8};
    params.sampling.temperature = 0;
    return std::make_shared<SequenceParams>(params);
  }();
  std::atomic<int> rows_ = 0, most_rows_ = 0;
  std::atomic<int64_t> preemptions_ = 0;
};

TEST_F(WorkerTreesTest, AnAcceptedPathStaysInTheCacheAndTheRestLeavesIt) {
  const std::vector<TokenId> plain = Plain(Text(10), 8);
  const auto worker = Target();
  const TreeReply reply =
      AskTree(*worker, Verify(1, 1, Text(10), 0, SecondChildren(std::span(plain).subspan(10, 5))));
  ASSERT_TRUE(reply.verdict.has_value()) << reply.status;
  EXPECT_THAT(reply.verdict->path, ::testing::ElementsAre(1, 3, 5, 7, 9));
  EXPECT_EQ(reply.verdict->token, plain[15]);
  EXPECT_EQ(reply.num_computed, 15);
  ExpectSame(AskTree(*worker, Verify(1, 2, std::span(plain).first(16), 15)),
             Alone(std::span(plain).first(16)));
}

TEST_F(WorkerTreesTest, APreemptedTreeHasTheVerdictThatItWouldHaveHad) {
  const std::vector<TokenId> first = Text(40), plain = Plain(Text(30, 1), 12);
  const Proposal tree = SecondChildren(std::span(plain).subspan(30, 4));
  const auto worker = Target({.kv_blocks = 18});
  AskTree(*worker, Verify(1, 1, Text(4), 0));  // the older one, which takes blocks from the newer
  const TreeReply before = AskTree(*worker, Verify(2, 1, std::span(plain).first(30), 0, tree));
  EXPECT_EQ(before.num_computed, 34);
  AskTree(*worker, Verify(1, 2, first, 4));
  EXPECT_EQ(preemptions_, 1);

  const Proposal next = SecondChildren(std::span(plain).subspan(35, 4));
  const TreeReply lost = AskTree(*worker, Verify(2, 2, std::span(plain).first(35), 34, next));
  EXPECT_EQ(ReasonOf(lost.status), "BASE_BEYOND_CACHED");
  EXPECT_EQ(lost.num_computed, 0);
  worker->Release({1, ~uint64_t{1}});
  ExpectSame(AskTree(*worker, Verify(2, 2, std::span(plain).first(35), 0, next)),
             Alone(std::span(plain).first(35), next));
}

TEST_F(WorkerTreesTest, APromptBeforeATreeIsFedInPiecesAndTheTreeInOne) {
  const std::vector<TokenId> plain = Plain(Text(90), 9);
  const Proposal tree = SecondChildren(std::span(plain).subspan(90, 8));
  const TreeReply alone = Alone(std::span(plain).first(90), tree);
  EXPECT_EQ(alone.verdict->path.size(), 8u);
  for (const int most : {17, 20, 64}) {  // of which the tree needs 17
    most_rows_ = 0;
    const auto worker = Target({.max_batch_rows = most});
    ExpectSame(AskTree(*worker, Verify(1, 1, Text(90), 0, tree)), alone);
    EXPECT_LE(most_rows_, most);
  }
}

TEST_F(WorkerTreesTest, AScoredPromptMayEndInATree) {
  const std::vector<TokenId> plain = Plain(Text(50), 5);
  WorkItem item = Verify(1, 1, Text(50), 0, SecondChildren(std::span(plain).subspan(50, 4)));
  std::get<VerifyWork>(item.work).prompt_logprobs = 1;
  const TreeReply whole = AskTree(*Target(), item);
  ASSERT_TRUE(whole.verdict.has_value()) << whole.status;
  EXPECT_EQ(whole.verdict->path.size(), 4u);
  EXPECT_EQ(whole.logprobs.size(), 2 * 49u) << "none of a node";
  const TreeReply cut = AskTree(*Target({.max_batch_rows = 16}), item);
  EXPECT_EQ(cut.logprobs, whole.logprobs);
  ExpectSame(cut, whole);
}

TEST_F(WorkerTreesTest, CopiesOfASequenceAfterItsVerdictGoTheirOwnWays) {
  const std::vector<TokenId> plain = Plain(Text(10), 10);
  const auto worker = Target({.prefix_cache = false});
  const Proposal tree = SecondChildren(std::span(plain).subspan(10, 5));
  ASSERT_EQ(AskTree(*worker, Verify(1, 1, Text(10), 0, tree)).num_computed, 15);
  // At the end of the accepted path, within it, and before it; in the same block of four and in others.
  uint64_t id = 1;
  for (const int base : {15, 13, 12, 9}) {
    std::vector<TokenId> other(plain.begin(), plain.begin() + base);
    other.push_back((plain[static_cast<size_t>(base)] + 7) % 256);
    const std::vector<TokenId> others = Plain(other, 4);
    const Proposal next = SecondChildren(std::span(others).last(4).first(3));
    WorkItem copy = Verify(++id, 1, other, base, next);
    copy.fork_of = SequenceId{1, ~uint64_t{1}};
    const TreeReply reply = AskTree(*worker, std::move(copy));
    EXPECT_EQ(reply.num_computed, base + 4);
    ExpectSame(reply, Alone(other, next));
  }
  const Proposal next = SecondChildren(std::span(plain).subspan(16, 3));
  ExpectSame(AskTree(*worker, Verify(1, 2, std::span(plain).first(16), 15, next)),
             Alone(std::span(plain).first(16), next));
}

// The copy shares a block in which the draft then moves the path that was accepted.
TEST_F(WorkerTreesTest, ACopyOfADraftsSequenceSeesNothingOfItsTree) {
  const auto draft = Start({}, std::make_unique<DraftSampler>());
  const TreeReply first = AskTree(*draft, Draft(1, 1, Text(10), 0));
  ASSERT_EQ(first.proposal.size(), 10u);
  EXPECT_EQ(first.num_computed, 10) << "nothing of a tree counts as held";
  std::vector<TokenId> other = Text(10), accepted = Text(10);
  other.push_back(7);
  accepted.insert(accepted.end(), {first.proposal[1].token, first.proposal[4].token, 9});
  WorkItem copy = Draft(2, 1, other, 10);
  copy.fork_of = SequenceId{1, ~uint64_t{1}};
  std::future<TreeReply> copied = SendTree(*draft, std::move(copy));
  std::future<TreeReply> moved = SendTree(*draft, Draft(1, 2, accepted, 10));
  const Proposal of_copy = copied.get().proposal, of_origin = moved.get().proposal;

  const auto fresh = Start({}, std::make_unique<DraftSampler>());
  const Proposal copy_alone = AskTree(*fresh, Draft(1, 1, other, 0)).proposal;
  const Proposal origin_alone = AskTree(*fresh, Draft(2, 1, accepted, 0)).proposal;
  EXPECT_TRUE(testing::BeginsWith(copy_alone, of_copy));
  EXPECT_EQ(copy_alone.size(), of_copy.size());
  EXPECT_TRUE(testing::BeginsWith(origin_alone, of_origin));
  EXPECT_EQ(origin_alone.size(), of_origin.size());
}

TEST_F(WorkerTreesTest, OnlyCommittedTokensAreFoundByOthers) {
  const std::vector<TokenId> plain = Plain(Text(10), 12);
  const auto worker = Target();
  // Blocks of four: the tree fills those of slots 12 to 15 and 16 to 19.
  const Proposal tree = SecondChildren(std::span(plain).subspan(10, 5));
  AskTree(*worker, Verify(1, 1, Text(10), 0, tree));
  std::vector<TokenId> by_row = Text(10);
  for (const ProposalNode& node : tree) by_row.push_back(node.token);
  by_row.push_back(1);
  EXPECT_EQ(AskTree(*worker, Verify(2, 1, by_row, 0)).prefix_hit, 8);
  EXPECT_EQ(AskTree(*worker, Verify(3, 1, std::span(plain).first(17), 0)).prefix_hit, 8)
      << "a path is committed only when the coordinator says so";
}

TEST_F(WorkerTreesTest, ABlockWithAMovedPathServesOthersAsAChainsWould) {
  const std::vector<TokenId> plain = Plain(Text(10), 12);
  const auto worker = Target();
  AskTree(*worker, Verify(1, 1, Text(10), 0, SecondChildren(std::span(plain).subspan(10, 6))));
  AskTree(*worker, Verify(1, 2, std::span(plain).first(17), 16));
  worker->Release({1, ~uint64_t{1}});
  const Proposal next = SecondChildren(std::span(plain).subspan(18, 3));
  const TreeReply reply = AskTree(*worker, Verify(2, 1, std::span(plain).first(18), 0, next));
  EXPECT_EQ(reply.prefix_hit, 16);
  ExpectSame(reply, Alone(std::span(plain).first(18), next));
}

TEST_F(WorkerTreesTest, ASmallerBaseTruncatesIntoAnAcceptedPath) {
  const std::vector<TokenId> plain = Plain(Text(10), 8);
  const auto worker = Target();
  AskTree(*worker, Verify(1, 1, Text(10), 0, SecondChildren(std::span(plain).subspan(10, 5))));
  std::vector<TokenId> other(plain.begin(), plain.begin() + 13);
  other.push_back((plain[13] + 1) % 256);
  const Proposal next = SecondChildren(std::vector<TokenId>{1, 2, 3});
  ExpectSame(AskTree(*worker, Verify(1, 2, other, 12, next)), Alone(other, next));
}

TEST_F(WorkerTreesTest, TheSameTreeTwiceIsJudgedOnceAndAnotherOneIsAConflict) {
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

TEST_F(WorkerTreesTest, AnotherShapeInTheSameRoundIsAConflict) {
  const auto draft = Start({}, std::make_unique<DraftSampler>());
  const TreeReply first = AskTree(*draft, Draft(1, 1, Text(10), 0));
  EXPECT_TRUE(testing::BeginsWith(AskTree(*draft, Draft(1, 1, Text(10), 0)).proposal, first.proposal));
  for (const char* other : {"2x2", "3", "chains:2", "budget:2"}) {
    EXPECT_EQ(ReasonOf(AskTree(*draft, Draft(1, 1, Text(10), 0, other)).status), "ROUND_CONFLICT") << other;
  }
}

TEST_F(WorkerTreesTest, ATreeThatIsSupersededOrCancelledLeavesNothingBehind) {
  const std::vector<TokenId> plain = Plain(Text(10), 5);
  const Proposal right = SecondChildren(std::span(plain).subspan(10, 3));
  const Proposal wrong = SecondChildren(std::vector<TokenId>{1, 2, 3, 4, 5, 6});
  const auto hold = std::make_shared<testing::Hold>();
  const auto worker = testing::StartHeldWorker(hold, {});
  std::future<testing::ShortReply> busy = testing::Send(*worker, testing::FirstItem(9));
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

TEST_F(WorkerTreesTest, ATreeThatComesTooLateIsRefusedAndMayBeSentAgain) {
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

TEST_F(WorkerTreesTest, ADraftWhoseTimeIsOverAnswersWithNothing) {
  const auto draft = Start({}, std::make_unique<DraftSampler>());
  WorkItem late = Draft(1, 1, Text(10), 0);
  late.deadline = absl::Now() - absl::Seconds(1);
  const TreeReply nothing = AskTree(*draft, std::move(late));
  EXPECT_TRUE(nothing.status.ok()) << nothing.status;
  EXPECT_TRUE(nothing.proposal.empty());
  EXPECT_EQ(AskTree(*draft, Draft(1, 2, Text(10), 0)).proposal.size(), 10u);
}

TEST_F(WorkerTreesTest, ANodeWithoutFiniteLogitsFailsItsItemWhereTheWalkReachesItAndNoOther) {
  const std::vector<TokenId> plain = Plain(Text(10), 5);
  const Proposal tree = SecondChildren(std::span(plain).subspan(10, 3));  // the walk goes along 1, 3 and 5
  const TreeReply alone = Alone(Text(10), tree);
  for (const auto& [node, fails] : {std::pair(0, false), {1, true}, {2, false}, {4, false}, {5, true}}) {
    const auto hold = std::make_shared<testing::Hold>();
    std::atomic<int> broken = -1;  // row of a step
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

TEST_F(WorkerTreesTest, ADraftsNodeWithoutFiniteLogitsStaysALeaf) {
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
