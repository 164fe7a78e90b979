// The target's own proposals: what the target is asked for, what is taken of its answer, and the loop around
// both.
#include <gmock/gmock.h>
#include <prometheus/registry.h>

#include "common/rpc/convert.h"
#include "coordinator/decode/drafters/local_drafters.h"
#include "coordinator/decode/round_loop.h"
#include "tests/unit/pool_testing.h"
#include "tests/unit/test_tokenizer.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Action = FakeTarget::Action;
using Tokens = std::vector<TokenId>;

constexpr v1::Rule kRule = v1::RULE_TOKEN;

Request RequestFor(Tokens prompt, v1::Proposer proposer = v1::PROPOSER_EAGLE) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = 1000;
  request.params.set_rule(kRule);
  request.params.set_proposer(proposer);
  request.drafter = v1::DRAFTER_KIND_EAGLE;
  request.draft_tokens = 4;
  return request;
}

Generation GenerationOf(Tokens prompt) {
  return Generation(RequestFor(std::move(prompt)), &TestTokenizer(), Clock::now());
}

ProposalNode Node(TokenId token, int parent) {
  return {.token = token,
          .parent = parent,
          .q = {.form = Distribution::Form::kPointMass, .ids = {token}, .total = 1}};
}

Proposal ChainOf(const Tokens& tokens) {
  Proposal chain;
  for (const TokenId token : tokens) chain.push_back(Node(token, static_cast<int>(chain.size()) - 1));
  return chain;
}

std::vector<std::pair<TokenId, int>> NodesOf(const Proposal& proposal) {
  std::vector<std::pair<TokenId, int>> nodes;
  for (const ProposalNode& node : proposal) nodes.emplace_back(node.token, node.parent);
  return nodes;
}

// --- the drafter ------------------------------------------------------------------------------------------

class TargetDrafterTest : public ::testing::Test {
 protected:
  // The drafter's proposal for a round that may draft up to `most` deep.
  Proposal Take(int most) {
    asio::io_context io;
    timing_ = {};
    drafter_.Begin({.most = most});
    auto proposal = asio::co_spawn(io, drafter_.Take(&timing_), asio::use_future);
    io.run();
    Proposal taken = proposal.get();
    for (const ProposalNode& node : taken) EXPECT_THAT(node.q.ids, ElementsAre(node.token)) << "its own q";
    return taken;
  }
  void Bring(Proposal nodes, size_t n = 3) {
    TargetProposal proposal{.nodes = std::move(nodes), .timing = {}};
    proposal.timing.set_compute_us(55);
    drafter_.OnProposal(n, std::move(proposal));
  }

  Generation generation_ = GenerationOf({1, 2, 3});
  TargetDrafter drafter_{&generation_, v1::DRAFTER_KIND_EAGLE};
  v1::ItemTiming timing_;
};

TEST_F(TargetDrafterTest, HandsOutWhatCameWithTheVerdictOnce) {
  Bring(ChainOf({7, 8}));
  EXPECT_THAT(NodesOf(Take(4)), ElementsAre(std::pair(7, -1), std::pair(8, 0)));
  EXPECT_EQ(timing_.compute_us(), 55u);
  EXPECT_EQ(drafter_.kind(), v1::DRAFTER_KIND_EAGLE);
  EXPECT_THAT(Take(4), IsEmpty());
  EXPECT_EQ(drafter_.status(), DraftStatus::kUsable);
}

TEST_F(TargetDrafterTest, HasNothingForOtherTokensThanThoseThatWereCommitted) {
  for (const size_t n : {2, 4}) {
    Bring(ChainOf({7, 8}), n);
    EXPECT_THAT(Take(4), IsEmpty());
  }
}

TEST_F(TargetDrafterTest, CutsAChainToWhatIsWanted) {
  Bring(ChainOf({7, 8, 9}));
  EXPECT_THAT(NodesOf(Take(2)), ElementsAre(std::pair(7, -1), std::pair(8, 0)));
}

TEST_F(TargetDrafterTest, CutsATreeByDepthAndKeepsItsParentsRight) {
  // Trees of three levels with two, three and one nodes, in two orders.
  Bring({Node(7, -1), Node(70, 0), Node(8, -1), Node(80, 2), Node(800, 3), Node(81, 2)});
  EXPECT_THAT(NodesOf(Take(1)), ElementsAre(std::pair(7, -1), std::pair(8, -1)));
  Bring({Node(7, -1), Node(70, 0), Node(700, 1), Node(8, -1), Node(80, 3), Node(81, 3)});
  EXPECT_THAT(NodesOf(Take(2)), ElementsAre(std::pair(7, -1), std::pair(70, 0), std::pair(8, -1),
                                            std::pair(80, 2), std::pair(81, 2)));
}

TEST_F(TargetDrafterTest, SaysWhyThereIsNone) {
  for (const DraftStatus status : {DraftStatus::kFailed, DraftStatus::kAway}) {
    drafter_.OnProposal(3, {.nodes = {}, .status = status, .timing = {}});
    EXPECT_THAT(Take(4), IsEmpty());
    EXPECT_EQ(drafter_.status(), status);
  }
  Bring(ChainOf({7}));
  EXPECT_THAT(Take(4), SizeIs(1));
  EXPECT_EQ(drafter_.status(), DraftStatus::kUsable);
}

// --- asking the target ------------------------------------------------------------------------------------

// A target that has EAGLE, and answers each item with a verdict and a proposal.
class OwnProposalTest : public PoolFixture<FakeTarget> {
 protected:
  void SetUp() override {
    server_.info.set_vocab_size(static_cast<uint32_t>(TestTokenizer().vocab_size()));
    v1::ProposerInfo* eagle = server_.info.add_proposers();
    eagle->set_proposer(v1::PROPOSER_EAGLE);
    eagle->set_max_draft_tokens(8);
    Answer([](const v1::VerifyItem& item) {
      return ChainOf(item.propose().draft_tokens() > 1 ? Tokens{8, 9} : Tokens{8});
    });
    Connect();
  }
  // Answers with a verdict that accepts every drafted token and ends in 7, and with a proposal by `propose`.
  void Answer(std::function<Proposal(const v1::VerifyItem&)> propose) {
    server_.Do([this, propose = std::move(propose)](const v1::TargetItem& item, v1::VerifyResult* result) {
      const v1::VerifyItem& verify = item.verify();
      items_.push_back(verify);
      v1::Verdict* verdict = result->mutable_verdict();
      for (int i = 0; i < verify.draft_size(); ++i) verdict->add_accepted(static_cast<uint32_t>(i));
      verdict->set_token(7);
      verdict->set_kind(verify.draft().empty() ? v1::TOKEN_KIND_PLAIN : v1::TOKEN_KIND_BONUS);
      result->mutable_timing()->set_compute_us(200);
      result->mutable_timing()->set_batch_sequences(1);
      result->mutable_timing()->set_batch_rows(1);
      if (!verify.has_propose()) return Action::kAnswer;
      result->set_propose_us(propose_us_);
      SerializeProposal(propose(verify), verdict->mutable_proposal());
      return Action::kAnswer;
    });
  }
  // Sends one item of a sequence, which asks for a proposal of this length.
  TargetAnswer Verify(const DraftLength& next) {
    Generation generation = GenerationOf({1, 2, 3});
    TargetClient client(pool_.get(), &metrics_, &generation, Clock::time_point::max(), Fork());
    std::optional<absl::StatusOr<TargetAnswer>> answer;
    const auto verify = [&]() -> asio::awaitable<void> {
      Proposal none;
      answer = co_await client.Verify(none, nullptr, &next);
    };
    asio::co_spawn(context_.get_executor(), verify(), asio::detached);
    RunUntil([&] { return answer.has_value(); });
    EXPECT_TRUE(answer->ok()) << answer->status();
    return **std::move(answer);
  }
  double ErrorsFor(const std::string& reason) {
    return CounterOf(registry_, "outrider_draft_errors_total", reason);
  }
  // Runs a generation from its prompt to its end.
  absl::Status Generate(Request request, std::vector<v1::GenerateResponse>* chunks = nullptr) {
    const DecodeParts parts{.executor = context_.get_executor(),
                            .tokenizer = &TestTokenizer(),
                            .targets = pool_.get(),
                            .policy = &policy_,
                            .metrics = &metrics_};
    const auto send = [chunks](v1::GenerateResponse chunk) -> asio::awaitable<absl::Status> {
      if (chunks != nullptr) chunks->push_back(std::move(chunk));
      co_return absl::OkStatus();
    };
    RoundLoop loop(parts, std::move(request), Clock::now(), Clock::time_point::max(), Fork(), send);
    std::optional<absl::Status> status;
    const auto run = [&]() -> asio::awaitable<void> {
      absl::Status prompt = co_await loop.ComputePrompt();
      if (prompt.ok()) prompt = co_await loop.Decode();
      status = prompt;
    };
    asio::co_spawn(context_.get_executor(), run(), asio::detached);
    RunUntil([&] { return status.has_value(); });
    stats_ = loop.generation.stats();
    return *status;
  }

  prometheus::Registry registry_;
  Metrics metrics_{registry_, 1};
  DraftChoice policy_;
  std::vector<v1::VerifyItem> items_;
  uint32_t propose_us_ = 50;
  v1::SpeculationStats stats_;
};

TEST_F(OwnProposalTest, IsAskedForWithItsLengthAndShape) {
  const TargetAnswer chain = Verify({.most = 3});
  EXPECT_EQ(items_.back().sequence().params().proposer(), v1::PROPOSER_EAGLE);
  EXPECT_EQ(items_.back().propose().draft_tokens(), 3u);
  EXPECT_FALSE(items_.back().propose().has_tree());
  EXPECT_THAT(NodesOf(chain.next.nodes), ElementsAre(std::pair(8, -1), std::pair(9, 0)));
  Verify({.most = 3, .tree = Chains{2}});
  EXPECT_EQ(items_.back().propose().tree().chains(), 2u);
}

TEST_F(OwnProposalTest, ItsTimeIsNoneOfTheVerification) {
  const TargetAnswer answer = Verify({.most = 3});
  EXPECT_EQ(answer.timing.compute_us(), 150u);
  EXPECT_EQ(answer.next.timing.compute_us(), 50u);
  EXPECT_EQ(answer.next.timing.batch_sequences(), 1u);
  propose_us_ = 1000;  // more than the whole item took
  EXPECT_EQ(Verify({.most = 3}).timing.compute_us(), 0u);
}

// The verdict is valid, whatever the proposal is.
TEST_F(OwnProposalTest, WhatWasNotAskedForIsDropped) {
  const DraftLength chain{.most = 2}, tree{.most = 2, .tree = Branching{{2, 1}}};
  const auto expect_dropped = [&](const DraftLength& asked, Proposal given, const std::string& reason) {
    Answer([given](const auto&) { return given; });
    const double before = ErrorsFor(reason);
    const TargetAnswer answer = Verify(asked);
    EXPECT_EQ(answer.verdict.token, 7);
    EXPECT_THAT(answer.next.nodes, IsEmpty()) << reason;
    EXPECT_EQ(answer.next.status, DraftStatus::kFailed) << reason;
    EXPECT_EQ(ErrorsFor(reason), before + 1) << reason;
  };
  expect_dropped(chain, {}, "PROPOSAL_EMPTY");
  expect_dropped(chain, ChainOf({8, 9, 10}), "PROPOSAL_TOO_LONG");
  expect_dropped(chain, {Node(8, -1), Node(9, -1)}, "PROPOSAL_NO_CHAIN");
  expect_dropped(tree, ChainOf({8, 9, 10}), "PROPOSAL_TOO_LONG");
  expect_dropped(tree, {Node(8, -1), Node(9, -1), Node(10, -1), Node(11, 0), Node(12, 0)},
                 "PROPOSAL_TOO_LONG");
  expect_dropped(chain, {Node(8, 0)}, "DRAFT_PARENT_OUT_OF_RANGE");
  expect_dropped(tree, {Node(8, 1), Node(9, -1)}, "DRAFT_PARENT_OUT_OF_RANGE");
  expect_dropped(chain, {Node(1 << 20, -1)}, "DRAFT_TOKEN_OUT_OF_RANGE");
  expect_dropped(chain, {{.token = 8, .parent = -1, .q = {}}}, "DRAFT_DISTRIBUTION_INVALID");
}

TEST_F(OwnProposalTest, ATreeThatWasAskedForIsTaken) {
  Answer([](const auto&) { return Proposal{Node(8, -1), Node(9, -1), Node(10, 1)}; });
  const TargetAnswer answer = Verify({.most = 2, .tree = Branching{{2, 1}}});
  EXPECT_EQ(answer.next.status, DraftStatus::kUsable);
  EXPECT_THAT(answer.next.nodes, SizeIs(3));
}

// --- the loop ---------------------------------------------------------------------------------------------

TEST_F(OwnProposalTest, EachRoundVerifiesWhatCameWithTheOneBefore) {
  Request request = RequestFor({1, 2, 3});
  request.draft_tokens = 2;
  request.max_tokens = 9;
  std::vector<v1::GenerateResponse> chunks;
  ASSERT_TRUE(Generate(std::move(request), &chunks).ok());
  // One token with the prompt, then three a round, up to the last two.
  std::vector<int> drafted, asked, emitted;
  for (const v1::VerifyItem& item : items_) {
    drafted.push_back(item.draft_size());
    asked.push_back(item.has_propose() ? static_cast<int>(item.propose().draft_tokens()) : 0);
  }
  for (const v1::GenerateResponse& chunk : chunks) emitted.push_back(chunk.tokens_size());
  EXPECT_THAT(drafted, ElementsAre(0, 2, 2, 1));
  EXPECT_THAT(emitted, ElementsAre(1, 3, 3, 2));
  EXPECT_THAT(asked, ElementsAre(2, 2, 2, 0)) << "no more than what one token of a verdict leaves";
  EXPECT_EQ(stats_.drafts(), 3u);
  EXPECT_EQ(stats_.accepted(), 5u);
}

TEST_F(OwnProposalTest, NothingIsAskedForThatCannotBeEmitted) {
  for (const auto& [max_tokens, wanted] :
       {std::pair(1, 0), std::pair(2, 0), std::pair(3, 1), std::pair(9, 4)}) {
    items_.clear();
    Request request = RequestFor({1, 2, 3});
    request.max_tokens = max_tokens;
    ASSERT_TRUE(Generate(std::move(request)).ok());
    EXPECT_EQ(items_.front().propose().draft_tokens(), static_cast<uint32_t>(wanted)) << max_tokens;
  }
}

TEST_F(OwnProposalTest, APlainRequestAsksForNothing) {
  Request request = RequestFor({1, 2, 3});
  request.draft_tokens = 0;
  request.max_tokens = 4;
  ASSERT_TRUE(Generate(std::move(request)).ok());
  EXPECT_THAT(items_, SizeIs(4));
  for (const v1::VerifyItem& item : items_) EXPECT_FALSE(item.has_propose());
}

TEST_F(OwnProposalTest, NothingIsAskedForWhileThePromptIsScored) {
  Request request = RequestFor({1, 2, 3});
  request.prompt_logprobs = 0;
  request.max_tokens = 4;
  server_.Do([this](const v1::TargetItem& item, v1::VerifyResult* result) {
    items_.push_back(item.verify());
    for (const uint32_t token : {2, 3}) {
      if (!item.verify().has_prompt_logprobs()) break;
      result->add_prompt_logprobs()->mutable_token()->set_id(token);
    }
    result->mutable_verdict()->set_token(7);
    result->mutable_verdict()->set_kind(v1::TOKEN_KIND_PLAIN);
    return Action::kAnswer;
  });
  ASSERT_TRUE(Generate(std::move(request)).ok());
  ASSERT_THAT(items_, SizeIs(4));
  EXPECT_FALSE(items_[0].has_propose());
  EXPECT_TRUE(items_[1].has_propose());
}

TEST_F(OwnProposalTest, AProposalThatCannotBeUsedCostsAPlainRoundAndNoError) {
  Answer([](const auto&) { return ChainOf({1 << 20}); });
  Request request = RequestFor({1, 2, 3});
  request.max_tokens = 4;
  request.trace = true;
  std::vector<v1::GenerateResponse> chunks;
  ASSERT_TRUE(Generate(std::move(request), &chunks).ok());
  ASSERT_THAT(chunks, SizeIs(4));
  EXPECT_EQ(stats_.drafts(), 0u);
  EXPECT_EQ(ErrorsFor("DRAFT_TOKEN_OUT_OF_RANGE"), 2);
}

TEST_F(OwnProposalTest, WhatTheTargetRefusesOfItselfCostsAPlainRoundToo) {
  server_.Do([this](const v1::TargetItem& item, v1::VerifyResult* result) {
    items_.push_back(item.verify());
    if (!item.verify().draft().empty()) {
      *result->mutable_status() =
          ToProto(MakeError(absl::StatusCode::kInvalidArgument, "DRAFT_DISTRIBUTION_INVALID", "bad"));
      return Action::kAnswer;
    }
    result->mutable_verdict()->set_token(7);
    result->mutable_verdict()->set_kind(v1::TOKEN_KIND_PLAIN);
    if (item.verify().has_propose()) {
      SerializeProposal(ChainOf({8}), result->mutable_verdict()->mutable_proposal());
    }
    return Action::kAnswer;
  });
  Request request = RequestFor({1, 2, 3});
  request.max_tokens = 4;
  ASSERT_TRUE(Generate(std::move(request)).ok());
  EXPECT_EQ(stats_.drafts(), 0u);
  // Two of four rounds had a proposal, and were sent again without it.
  EXPECT_THAT(items_, SizeIs(6));
}

TEST_F(OwnProposalTest, WhatAProposalTookCountsInTheRoundThatVerifiesIt) {
  Request request = RequestFor({1, 2, 3});
  request.draft_tokens = 2;
  request.max_tokens = 6;
  request.trace = true;
  std::vector<v1::GenerateResponse> chunks;
  ASSERT_TRUE(Generate(std::move(request), &chunks).ok());
  ASSERT_THAT(chunks, SizeIs(3));
  EXPECT_EQ(chunks[0].trace().draft_compute_us(), 0u);
  EXPECT_EQ(chunks[0].trace().verify_compute_us(), 150u);
  for (const int round : {1, 2}) {
    const v1::RoundTrace& trace = chunks[static_cast<size_t>(round)].trace();
    EXPECT_EQ(trace.draft_compute_us(), 50u);
    EXPECT_GE(trace.draft_us(), 50u);
    EXPECT_GE(trace.round_us() + 2, trace.draft_us() + trace.verify_us());
  }
  EXPECT_EQ(chunks[2].trace().verify_compute_us(), 200u) << "nothing was asked for any more";
}

TEST_F(OwnProposalTest, ATreeIsAskedForAndCutWhereTheAnswerEnds) {
  Request request = RequestFor({1, 2, 3});
  request.draft_tokens = 2;
  request.tree = Branching{{2, 1}};
  request.max_tokens = 5;
  server_.Do([this, n = 0](const v1::TargetItem& item, v1::VerifyResult* result) mutable {
    items_.push_back(item.verify());
    const bool whole = item.verify().draft_size() == 4;
    if (whole && n++ == 0) result->mutable_verdict()->add_accepted(1);
    result->mutable_verdict()->set_token(7);
    result->mutable_verdict()->set_kind(item.verify().draft().empty() ? v1::TOKEN_KIND_PLAIN
                                                                      : v1::TOKEN_KIND_CORRECTED);
    if (item.verify().has_propose()) {
      Proposal tree = {Node(8, -1), Node(9, -1), Node(10, 0), Node(11, 1)};
      if (item.verify().propose().draft_tokens() < 2) tree.resize(2);
      SerializeProposal(tree, result->mutable_verdict()->mutable_proposal());
    }
    return Action::kAnswer;
  });
  ASSERT_TRUE(Generate(std::move(request)).ok());
  std::vector<int> drafted;
  for (const v1::VerifyItem& item : items_) drafted.push_back(item.draft_size());
  // Five tokens: the prompt's, then two of a whole tree, after which there is room for one drafted token.
  EXPECT_THAT(drafted, ElementsAre(0, 4, 2, 0));
  EXPECT_EQ(items_[0].propose().tree().branching().children_size(), 2);
}

// The number of rounds that verified a proposal of this drafter.
double RoundsOf(const prometheus::Registry& registry, const std::string& name) {
  double rounds = 0;
  for (const auto& family : registry.Collect()) {
    if (family.name != "outrider_spec_decode_num_drafts_by_drafter_total") continue;
    for (const auto& metric : family.metric) {
      if (metric.label[0].value == name) rounds += metric.counter.value;
    }
  }
  return rounds;
}

TEST_F(OwnProposalTest, AutoPrefersALongMatchOfTheText) {
  Request request = RequestFor({1, 2, 3});
  request.drafter = v1::DRAFTER_KIND_AUTO;
  request.max_tokens = 40;
  Answer([](const auto&) { return ChainOf({8}); });
  ASSERT_TRUE(Generate(std::move(request)).ok());
  EXPECT_GT(RoundsOf(registry_, "eagle"), 0) << "before the text repeats itself";
  EXPECT_GT(RoundsOf(registry_, "ngram"), 0) << "7 8 7 8 7 8";
  double proposed = 0;
  for (const v1::VerifyItem& item : items_) proposed += item.has_propose() ? 1 : 0;
  EXPECT_LT(proposed, RoundsOf(registry_, "eagle") + RoundsOf(registry_, "ngram"))
      << "while n-grams are right the target is not asked";
  EXPECT_EQ(RoundsOf(registry_, "eagle") + RoundsOf(registry_, "ngram"), stats_.drafts());
}

// --- several targets --------------------------------------------------------------------------------------

class OwnProposalPoolTest : public TargetPoolFixture {
 protected:
  static void Has(RunningTarget& target, v1::Proposer proposer, uint32_t most, bool greedy = false) {
    v1::ProposerInfo* info = target.fake.info.add_proposers();
    info->set_proposer(proposer);
    info->set_max_draft_tokens(most);
    info->set_greedy(greedy);
  }
};

TEST_F(OwnProposalPoolTest, OnlyWhatAllTargetsHaveCounts) {
  RunningTarget& first = Start();
  RunningTarget& second = Start();
  Has(first, v1::PROPOSER_MEDUSA, 4, true);
  Has(first, v1::PROPOSER_EAGLE, 8);
  Has(second, v1::PROPOSER_LAYER_SKIP, 8);
  Has(second, v1::PROPOSER_MEDUSA, 3);
  Connect({Address(0), Address(1)});
  AwaitUp(2);
  ASSERT_THAT(pool_->info()->proposers(), SizeIs(1));
  const v1::ProposerInfo& common = pool_->info()->proposers(0);
  EXPECT_EQ(common.proposer(), v1::PROPOSER_MEDUSA);
  EXPECT_EQ(common.max_draft_tokens(), 3u);
  EXPECT_FALSE(common.greedy());
}

// For example, a target that came after the request. It would refuse a sequence with a proposer.
TEST_F(OwnProposalPoolTest, ATargetWithoutTheProposerDecodesPlain) {
  RunningTarget& target = Start();
  std::vector<v1::VerifyItem> items;
  target.fake.Do([&items](const v1::TargetItem& item, v1::VerifyResult* result) {
    items.push_back(item.verify());
    result->mutable_verdict()->set_token(7);
    result->mutable_verdict()->set_kind(v1::TOKEN_KIND_PLAIN);
    return Action::kAnswer;
  });
  Connect({Address(0)});
  AwaitUp(1);
  prometheus::Registry registry;
  Metrics metrics(registry, 1);
  Generation generation = GenerationOf({1, 2, 3});
  TargetClient client(pool_.get(), &metrics, &generation, Clock::time_point::max(), Fork());
  std::optional<absl::StatusOr<TargetAnswer>> answer;
  const DraftLength next{.most = 3};
  const auto verify = [&]() -> asio::awaitable<void> {
    Proposal none;
    answer = co_await client.Verify(none, nullptr, &next);
  };
  asio::co_spawn(context_.get_executor(), verify(), asio::detached);
  RunUntil([&] { return answer.has_value(); });
  ASSERT_TRUE(answer->ok()) << answer->status();
  EXPECT_EQ((*answer)->next.status, DraftStatus::kAway);
  ASSERT_THAT(items, SizeIs(1));
  EXPECT_FALSE(items[0].has_propose());
  EXPECT_EQ(items[0].sequence().params().proposer(), v1::PROPOSER_UNSPECIFIED);
}

}  // namespace
}  // namespace outrider
