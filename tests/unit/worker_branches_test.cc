// Branches in the engine's worker, with a real model of random weights.
#include <gmock/gmock.h>

#include <future>

#include "common/engine/worker.h"
#include "common/kv/prefix_hash.h"
#include "draft_service/draft_sampler.h"
#include "host_device_model.h"

namespace outrider {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

struct Reply {
  absl::Status status;
  std::optional<TokenId> next;
  Proposal proposal;
};

struct Case {
  Rule rule;
  double temperature;
};

bool SameNode(const ProposalNode& a, const ProposalNode& b) {
  return a.token == b.token && a.parent == b.parent && a.q.form == b.q.form && a.q.ids == b.q.ids &&
         a.q.weights == b.q.weights && a.confidence == b.confidence;
}

// Parameterised by whether the model runs device tasks or leaves its logits to the host.
class WorkerBranchesTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    RunnerOptions load;
    load.model_dir = "tests/data/engine/mha-float32";
    load.dtype = "float32";
    load.threads = 1;
    load.kv_blocks = 256;
    load.block_size = 4;
    absl::StatusOr<std::unique_ptr<Runner>> runner =
        GetParam() ? Runner::Load(load, testing::HostDevice(/*team=*/1)) : Runner::Load(load);
    ASSERT_TRUE(runner.ok()) << runner.status();
    worker_ = std::make_unique<Worker>(*std::move(runner), std::make_unique<DraftSampler>(),
                                       WorkerOptions{.check_invariants = true}, Worker::Hooks{});
  }

  static WorkItem Item(const Case& parameters, uint64_t id, const std::vector<TokenId>& tokens,
                       size_t base = 0) {
    WorkItem item;
    item.id = {id, ~id};
    item.round = 1;
    item.base = static_cast<uint32_t>(base);
    item.tokens.assign(tokens.begin() + static_cast<ptrdiff_t>(base), tokens.end());
    item.prefix_hash = PrefixHash(std::span(tokens).first(base));
    item.params_hash = 1;
    if (base == 0) {
      auto params = std::make_shared<SequenceParams>();
      params->rule = parameters.rule;
      params->sampling.temperature = parameters.temperature;
      params->key.seed = 3;
      params->prompt_length = 4;
      params->draft_top_n = 16;
      item.params = std::move(params);
    }
    return item;
  }
  Reply Ask(WorkItem item) {
    std::promise<Reply> promise;
    item.answer = [&](const Answer& a) { promise.set_value({a.status, a.next, a.proposal}); };
    worker_->Submit(std::move(item));
    return promise.get_future().get();
  }
  // The answer to an item of a new sequence with all of `tokens`.
  Reply Fresh(const Case& parameters, uint64_t id, const std::vector<TokenId>& tokens, int draft_tokens) {
    WorkItem item = Item(parameters, id, tokens);
    item.work = ProposeWork{.draft_tokens = draft_tokens};
    return Ask(std::move(item));
  }

  const std::vector<Case> kCases = {
      {Rule::kToken, 1}, {Rule::kBlock, 1}, {Rule::kCoupled, 1}, {Rule::kToken, 0}, {Rule::kCoupled, 0}};
  const std::vector<TokenId> kTokens = {5, 42, 79, 116, 153, 190, 227, 8, 45};
  std::unique_ptr<Worker> worker_;
};

INSTANTIATE_TEST_SUITE_P(Models, WorkerBranchesTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Device" : "Host"; });

// The drawn token is the first of a fresh draft after these tokens; the rest is a fresh draft after one more.
TEST_P(WorkerBranchesTest, ADrawnTokenAndWhatFollowsAreWhatFreshItemsGet) {
  uint64_t id = 0;
  for (const Case& parameters : kCases) {
    const uint64_t origin = ++id;
    Fresh(parameters, origin, kTokens, 1);
    std::vector<TokenId> tokens = kTokens;
    tokens.insert(tokens.end(), {11, 12});
    WorkItem item = Item(parameters, ++id, tokens, kTokens.size());
    item.fork_of = SequenceId{origin, ~origin};
    item.branch = true;
    item.work = ProposeWork{.draft_tokens = 4, .draw_next = true};
    TokenId told = -1;
    item.on_next = [&](TokenId next) { told = next; };
    const Reply branch = Ask(std::move(item));
    ASSERT_TRUE(branch.status.ok()) << branch.status;
    ASSERT_TRUE(branch.next);
    EXPECT_EQ(told, *branch.next);
    const Reply first = Fresh(parameters, ++id, tokens, 1);
    EXPECT_EQ(*branch.next, first.proposal[0].token);
    tokens.push_back(*branch.next);
    const Reply rest = Fresh(parameters, ++id, tokens, 4);
    ASSERT_EQ(branch.proposal.size(), 4u);
    for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(SameNode(branch.proposal[i], rest.proposal[i])) << i;
  }
}

TEST_P(WorkerBranchesTest, NothingNeedFollowADrawnToken) {
  WorkItem item = Item(kCases[0], 1, kTokens);
  item.branch = true;
  item.work = ProposeWork{.draft_tokens = 0, .draw_next = true};
  const Reply reply = Ask(std::move(item));
  EXPECT_TRUE(reply.status.ok()) << reply.status;
  EXPECT_TRUE(reply.next);
  EXPECT_THAT(reply.proposal, IsEmpty());
}

TEST_P(WorkerBranchesTest, ADraftThatIsToStopStillDrawsTheTokenBefore) {
  WorkItem item = Item(kCases[0], 1, kTokens);
  item.branch = true;
  item.work =
      ProposeWork{.draft_tokens = 4, .stop = DraftStop{.acceptance = {0}, .least = 1}, .draw_next = true};
  const Reply reply = Ask(std::move(item));
  EXPECT_TRUE(reply.next);
  EXPECT_THAT(reply.proposal, SizeIs(GetParam() ? 4 : 1)) << "a device takes no notice";
}

TEST_P(WorkerBranchesTest, AlternativesAreOtherTokensAndChangeNothing) {
  uint64_t id = 0;
  for (const Case& parameters : kCases) {
    const Reply plain = Fresh(parameters, ++id, kTokens, 3);
    EXPECT_THAT(plain.proposal[0].alternatives, IsEmpty());
    WorkItem item = Item(parameters, ++id, kTokens);
    item.work = ProposeWork{.draft_tokens = 3, .alternatives = 2};
    const Reply reply = Ask(std::move(item));
    ASSERT_EQ(reply.proposal.size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(SameNode(reply.proposal[i], plain.proposal[i]));
    if (GetParam()) {
      EXPECT_THAT(reply.proposal[0].alternatives, IsEmpty()) << "a device knows none";
      continue;
    }
    ASSERT_THAT(reply.proposal, SizeIs(3));
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_THAT(reply.proposal[i].alternatives, SizeIs(2));
      EXPECT_THAT(reply.proposal[i].alternatives, Not(::testing::Contains(reply.proposal[i].token)));
      EXPECT_NE(reply.proposal[i].alternatives[0], reply.proposal[i].alternatives[1]);
    }
  }
}

}  // namespace
}  // namespace outrider
