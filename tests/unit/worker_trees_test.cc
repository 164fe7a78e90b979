// Trees in a worker when their sequence is preempted, cut into chunks, copied or truncated.
#include "common/spec/status.h"
#include "draft_service/draft_sampler.h"
#include "worker_trees_testing.h"

namespace outrider {
namespace {

using testing::AskTree;
using testing::Certain;
using testing::SecondChildren;
using testing::SendTree;
using testing::Text;
using testing::TreeItem;
using testing::TreeReply;
using testing::WorkerTreesTest;

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

// Penalties count what a node's own path repeats, and nothing of its siblings.
std::shared_ptr<const SequenceParams> Penalised(Rule rule, double temperature) {
  SequenceParams params{.rule = rule, .prompt_length = 4, .draft_top_n = 8, .logprobs = 3};
  params.sampling.temperature = temperature;
  params.sampling.frequency_penalty = 1.5;
  params.sampling.repetition_penalty = 1.2;
  params.key.seed = static_cast<uint64_t>(rule) + 7;
  return std::make_shared<SequenceParams>(params);
}

TEST_F(WorkerTreesTest, TheVerdictAlongAPathIsThatOfThePathAsAChain) {
  for (const auto& params : {Penalised(Rule::kToken, 0), Penalised(Rule::kCoupled, 0.9)}) {
    const auto worker = Target({.prefix_cache = false});
    uint64_t id = 0;
    const auto verify = [&](std::span<const TokenId> tokens, Proposal proposal) {
      if (params->rule == Rule::kCoupled) {
        for (ProposalNode& node : proposal) node.q = {};
      }
      return AskTree(*worker,
                     TreeItem(++id, 1, tokens, 0, params, VerifyWork{.proposal = std::move(proposal)}));
    };
    std::vector<TokenId> plain = Text(10);
    while (plain.size() < 16) plain.push_back(verify(plain, {}).verdict->token);
    Proposal chain;
    for (size_t i = 10; i < 15; ++i) chain.push_back(Certain(plain[i], static_cast<int>(i) - 11));
    const TreeReply as_chain = verify(std::span(plain).first(10), chain);
    const TreeReply as_tree =
        verify(std::span(plain).first(10), SecondChildren(std::span(plain).subspan(10, 5)));
    ASSERT_TRUE(as_tree.verdict.has_value()) << as_tree.status;
    EXPECT_THAT(as_tree.verdict->path, ::testing::ElementsAre(1, 3, 5, 7, 9));
    EXPECT_EQ(as_tree.verdict->token, plain[15]);
    EXPECT_EQ(as_tree.verdict->log_probabilities, as_chain.verdict->log_probabilities);
    EXPECT_EQ(as_tree.logprobs, as_chain.logprobs);
  }
}

TEST_F(WorkerTreesTest, ADraftsNodeHasTheChildrenThatItsPathWouldHave) {
  const auto params = Penalised(Rule::kToken, 0);
  const auto draft = Start({.prefix_cache = false}, std::make_unique<DraftSampler>());
  uint64_t id = 0;
  const auto propose = [&](std::span<const TokenId> tokens, int depth, const char* shape) {
    return AskTree(*draft, TreeItem(++id, 1, tokens, 0, params,
                                    ProposeWork{.draft_tokens = depth, .tree = *ParseTreeShape(shape)}))
        .proposal;
  };
  const Proposal tree = propose(Text(10), 3, "3x3x3");
  ASSERT_EQ(tree.size(), 39u);
  for (int node = 0; node < 12; ++node) {
    std::vector<TokenId> path = Text(10), children;
    if (tree[static_cast<size_t>(node)].parent >= 0) {
      path.push_back(tree[static_cast<size_t>(tree[static_cast<size_t>(node)].parent)].token);
    }
    path.push_back(tree[static_cast<size_t>(node)].token);
    for (const ProposalNode& child : tree) {
      if (child.parent == node) children.push_back(child.token);
    }
    std::vector<TokenId> expected;
    for (const ProposalNode& child : propose(path, 1, "3")) expected.push_back(child.token);
    EXPECT_EQ(children, expected) << "node " << node;
  }
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
  for (const int most : {17, 20, 64}) {  // the tree alone needs 17
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
  // Copies at the end of the accepted path, within it and before it, in the same block of four and others.
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

}  // namespace
}  // namespace outrider
