// Drafting ahead: what the drafter asks of the draft during a verification, and how it uses the answers.
#include "coordinator/decode/drafters/model_drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include "common/kv/prefix_hash.h"
#include "tests/unit/pool_testing.h"
#include "tests/unit/test_tokenizer.h"

namespace outrider {
namespace {

using testing::ElementsAre;
using testing::SizeIs;
using Action = FakeDraft::Action;

Request CoupledRequest() {
  Request request;
  request.prompt = {5, 6, 7};
  request.max_tokens = 1000;
  request.params.set_rule(v1::RULE_COUPLED);
  return request;
}

// A draft that proposes 100, 101, ... after any sequence, and 200, 201, ... on a branch. It draws 50 as the
// next token.
class BranchesTest : public PoolFixture<FakeDraft> {
 protected:
  void SetUp() override {
    server_.Do([this](const v1::DraftItem& item, v1::ProposeResult* result) { return OnItem(item, result); });
    server_.Before([](const v1::DraftItem& item) -> std::optional<v1::ProposeResult> {
      if (!item.propose().draw_next()) return std::nullopt;
      v1::ProposeResult partial;
      partial.set_partial(true);
      partial.mutable_next()->set_token(50);
      partial.mutable_next()->set_parent(-1);
      return partial;
    });
  }
  Action OnItem(const v1::DraftItem& item, v1::ProposeResult* result) {
    sent_.push_back(item.propose());
    const bool is_branch = item.propose().assumed_tokens() > 0 || item.propose().draw_next();
    for (int i = 0; i < static_cast<int>(item.propose().draft_tokens()); ++i) {
      v1::DraftNode* node = result->add_nodes();
      node->set_token(static_cast<uint32_t>((is_branch ? 200 : 100) + i));
      node->set_parent(i - 1);
      result->add_alternatives()->add_ids(static_cast<uint32_t>(300 + i));
    }
    result->set_cached(result->cached() + item.propose().draft_tokens() - 1);
    return is_branch ? on_branch_(result) : Action::kAnswer;
  }

  std::unique_ptr<ModelDrafter> MakeDrafter(Generation* generation) {
    return std::make_unique<ModelDrafter>(generation, pool_.get(), &metrics_, std::chrono::seconds(10), 4096,
                                          Fork());
  }
  // The next proposal.
  Proposal Take() {
    if (drafter_ == nullptr) {
      Connect();
      drafter_ = MakeDrafter(&generation_);
    }
    v1::ItemTiming timing;
    drafter_->Begin({.most = 3, .ahead = true});
    return Run(drafter_->Take(&timing));
  }
  void RunAhead(const Proposal& proposal, const std::vector<Outcome>& outcomes) {
    drafter_->RunAhead(proposal, outcomes);
  }
  // Commits a verdict that accepts `accepted` tokens of the proposal, followed by `token`.
  void Judge(const Proposal& proposal, size_t accepted, TokenId token) {
    Verdict verdict;
    verdict.path = ChainPath(accepted);
    verdict.token = token;
    drafter_->OnVerdict(generation_.size(), verdict);
    generation_.Commit(proposal, verdict);
  }
  // Waits until the draft has answered everything that it was sent.
  void Settle() {
    Generation other(CoupledRequest(), &TestTokenizer(), Clock::now());
    const auto drafter = MakeDrafter(&other);
    v1::ItemTiming timing;
    drafter->Begin({1});
    Run(drafter->Take(&timing));
    sent_.pop_back();
  }
  std::vector<std::string> Released() {
    Settle();
    std::vector<std::string> ids;
    for (const v1::DraftItem& item : server_.TakeControls()) {
      if (item.has_release()) ids.push_back(item.release().sequence_id());
      if (item.has_promote()) promoted_.push_back(item.promote().sequence_id());
    }
    return ids;
  }

  std::function<Action(v1::ProposeResult*)> on_branch_ = [](v1::ProposeResult*) { return Action::kAnswer; };
  std::vector<v1::ProposeItem> sent_;
  std::vector<std::string> promoted_;
  prometheus::Registry registry_;
  Metrics metrics_{registry_, 1};
  Generation generation_{CoupledRequest(), &TestTokenizer(), Clock::now()};
  std::unique_ptr<ModelDrafter> drafter_;
};

std::vector<Outcome> Foreseen() {
  return {{.accepted = 3, .length = {2}}, {.accepted = 1, .token = 301, .length = {2}}};
}

TEST_F(BranchesTest, ABranchIsACopyThatEndsWithTheTokensOfItsOutcome) {
  const Proposal proposal = Take();
  ASSERT_THAT(proposal, SizeIs(3));
  EXPECT_THAT(proposal[1].alternatives, ElementsAre(301));
  RunAhead(proposal, Foreseen());
  Settle();
  ASSERT_THAT(sent_, SizeIs(3));
  const v1::SequenceUpdate& whole = sent_[1].sequence();
  EXPECT_EQ(whole.fork_of(), generation_.sequence_id());
  EXPECT_NE(whole.sequence_id(), generation_.sequence_id());
  EXPECT_EQ(whole.base(), 5u) << "the draft fed all of its tokens but the last";
  EXPECT_THAT(whole.tokens(), ElementsAre(102));
  EXPECT_EQ(whole.prefix_hash(), PrefixHash(std::vector<TokenId>{5, 6, 7, 100, 101}));
  EXPECT_FALSE(whole.has_params()) << "they are those of the sequence that it is a copy of";
  EXPECT_EQ(whole.params_hash(), generation_.params_hash());
  EXPECT_EQ(sent_[1].assumed_tokens(), 3u);
  EXPECT_TRUE(sent_[1].draw_next());
  const v1::SequenceUpdate& part = sent_[2].sequence();
  EXPECT_NE(part.sequence_id(), whole.sequence_id());
  EXPECT_EQ(part.base(), 4u);
  EXPECT_THAT(part.tokens(), ElementsAre(301));
  EXPECT_EQ(part.prefix_hash(), PrefixHash(std::vector<TokenId>{5, 6, 7, 100}));
  EXPECT_EQ(sent_[2].assumed_tokens(), 2u);
  EXPECT_FALSE(sent_[2].draw_next());
}

TEST_F(BranchesTest, TheBranchOfWhatCameIsTheNextProposalAndItsSequenceGoesOn) {
  const Proposal proposal = Take();
  RunAhead(proposal, Foreseen());
  Settle();
  Judge(proposal, 1, 301);
  EXPECT_EQ(drafter_->ahead().branches, 2);
  EXPECT_TRUE(drafter_->ahead().hit);
  EXPECT_EQ(drafter_->ahead().wasted_tokens, 2u);
  const Proposal next = Take();
  ASSERT_THAT(next, SizeIs(2));
  EXPECT_EQ(next[0].token, 200);
  EXPECT_EQ(drafter_->ahead().steps, 2);
  ASSERT_THAT(sent_, SizeIs(3)) << "nothing was asked for";
  EXPECT_THAT(Released(), ElementsAre(sent_[1].sequence().sequence_id(), generation_.sequence_id()));
  EXPECT_THAT(promoted_, ElementsAre(sent_[2].sequence().sequence_id()));

  Judge(next, 0, 9);
  EXPECT_THAT(Take(), SizeIs(3));
  ASSERT_THAT(sent_, SizeIs(4));
  EXPECT_EQ(sent_[3].sequence().sequence_id(), sent_[2].sequence().sequence_id());
  EXPECT_EQ(sent_[3].sequence().base(), 5u);
  EXPECT_THAT(sent_[3].sequence().tokens(), ElementsAre(9));
}

TEST_F(BranchesTest, AnOutcomeThatNobodyForesawCostsARoundAsAnyOther) {
  const Proposal proposal = Take();
  RunAhead(proposal, Foreseen());
  Settle();
  Judge(proposal, 1, 44);
  EXPECT_EQ(drafter_->ahead().branches, 2);
  EXPECT_FALSE(drafter_->ahead().hit);
  EXPECT_THAT(Released(), ElementsAre(sent_[1].sequence().sequence_id(), sent_[2].sequence().sequence_id()));
  const Proposal next = Take();
  EXPECT_EQ(next[0].token, 100);
  EXPECT_EQ(sent_.back().sequence().sequence_id(), generation_.sequence_id());
  EXPECT_EQ(sent_.back().sequence().base(), 4u);
  EXPECT_EQ(drafter_->ahead().steps, 0);
}

TEST_F(BranchesTest, WhatFollowsAWholeProposalIsWhatTheDraftDrew) {
  for (const TokenId token : {50, 51}) {
    const Proposal proposal = Take();
    RunAhead(proposal, {{.accepted = proposal.size(), .length = {2}}});
    Settle();
    Judge(proposal, proposal.size(), token);
    EXPECT_EQ(drafter_->ahead().hit, token == 50);
  }
}

TEST_F(BranchesTest, ABranchThatIsStillAtWorkIsPromotedAndWaitedFor) {
  on_branch_ = [](v1::ProposeResult*) { return Action::kIgnore; };
  const Proposal proposal = Take();
  RunAhead(proposal, Foreseen());
  Settle();
  Judge(proposal, 1, 301);
  EXPECT_TRUE(drafter_->ahead().hit);
  Released();
  EXPECT_THAT(promoted_, ElementsAre(sent_[2].sequence().sequence_id()));
}

TEST_F(BranchesTest, ABranchThatTheDraftHadNoRoomForIsNoHit) {
  on_branch_ = [](v1::ProposeResult* result) {
    *result->mutable_status() = ToProto(BusyError("KV_EXHAUSTED", "full", absl::Seconds(1)));
    result->clear_nodes();
    return Action::kAnswer;
  };
  const Proposal proposal = Take();
  RunAhead(proposal, Foreseen());
  Settle();
  Judge(proposal, 1, 301);
  EXPECT_FALSE(drafter_->ahead().hit);
  EXPECT_EQ(Take()[0].token, 100) << "and the draft is asked as usual";
}

TEST_F(BranchesTest, ABranchThatGaveWayBeforeItDraftedIsAskedForAsAnyProposal) {
  on_branch_ = [](v1::ProposeResult* result) {
    result->clear_nodes();
    return Action::kAnswer;
  };
  const Proposal proposal = Take();
  RunAhead(proposal, {{.accepted = 3, .length = {2}}});
  Settle();
  Judge(proposal, 3, 50);
  EXPECT_TRUE(drafter_->ahead().hit) << "its token was drawn";
  EXPECT_THAT(Take(), SizeIs(3));
  EXPECT_EQ(drafter_->status(), DraftStatus::kUsable);
  EXPECT_EQ(CounterOf(registry_, "outrider_draft_errors_total", "PROPOSAL_EMPTY"), 0);
}

TEST_F(BranchesTest, ADroppedBranchIsOwedNoAnswer) {
  on_branch_ = [](v1::ProposeResult*) { return Action::kIgnore; };
  Connect({.item_timeout = std::chrono::milliseconds(50)});
  drafter_ = MakeDrafter(&generation_);
  const Proposal proposal = Take();
  RunAhead(proposal, Foreseen());
  Settle();
  Judge(proposal, 1, 44);
  Event never(link_->executor());
  Run([&]() -> asio::awaitable<bool> {
    co_await never.Wait(Clock::now() + std::chrono::milliseconds(200));
    co_return true;
  }());
  EXPECT_TRUE(link_->up());
  EXPECT_EQ(link_->connections(), 1u) << "the draft was taken for hanging";
}

TEST_F(BranchesTest, NoBranchGoesPastTheDraftsContext) {
  server_.info.set_max_context(9);
  const Proposal proposal = Take();
  RunAhead(proposal, {{.accepted = 3, .length = {4}}, {.accepted = 0, .token = 300, .length = {8}}});
  Settle();
  ASSERT_THAT(sent_, SizeIs(3));
  EXPECT_EQ(sent_[1].draft_tokens(), 2u);
  EXPECT_EQ(sent_[2].draft_tokens(), 5u);
}

TEST_F(BranchesTest, AConnectionThatBreaksUnderBranchesEndsThem) {
  on_branch_ = [](v1::ProposeResult*) { return Action::kDropStream; };
  const Proposal proposal = Take();
  RunAhead(proposal, Foreseen());
  RunUntil([&] { return link_->connections() == 2 && link_->up(); });
  Judge(proposal, 1, 301);
  EXPECT_FALSE(drafter_->ahead().hit);
  Take();
  const size_t before = sent_.size();
  RunAhead(proposal, Foreseen());
  Settle();
  EXPECT_EQ(sent_.size(), before) << "one of them may be what it died of";
}

}  // namespace
}  // namespace outrider
