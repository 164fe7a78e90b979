// The drafter of the draft service, against a draft that answers nothing, is late or full, or dies of items.
#include "coordinator/decode/drafters/model_drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include "tests/unit/pool_testing.h"
#include "tests/unit/test_tokenizer.h"

namespace outrider {
namespace {

using DraftAction = FakeDraft::Action;

constexpr auto kBudget = std::chrono::seconds(10);

Generation Sequence(size_t tokens) {
  Request request;
  request.prompt.assign(tokens, 5);
  request.max_tokens = 10'000;
  request.params.set_rule(v1::RULE_COUPLED);
  return Generation(std::move(request), &TestTokenizer(), Clock::now());
}

// Proposes as many tokens as were asked for.
DraftAction Propose(const v1::DraftItem& item, v1::ProposeResult* result) {
  for (uint32_t i = 0; i < item.propose().draft_tokens(); ++i) {
    result->add_nodes()->set_token(7);
    result->mutable_nodes(static_cast<int>(i))->set_parent(static_cast<int>(i) - 1);
  }
  return DraftAction::kAnswer;
}

DraftAction Full(absl::Duration retry_after, v1::ProposeResult* result) {
  *result->mutable_status() = ToProto(BusyError("KV_EXHAUSTED", "full", retry_after));
  return DraftAction::kAnswer;
}

class ModelDrafterTest : public PoolFixture<FakeDraft> {
 protected:
  void SetUp() override {
    server_.Do(Propose);
    Connect();
  }

  // A generation and its drafter.
  struct Client {
    Client(size_t tokens, DraftPool* pool, Metrics* metrics, Clock::duration budget, int vocab)
        : generation(Sequence(tokens)), drafter(&generation, pool, metrics, budget, vocab, Fork()) {}

    Generation generation;
    ModelDrafter drafter;
  };
  std::unique_ptr<Client> MakeClient(size_t tokens = 3, Clock::duration budget = kBudget) {
    return std::make_unique<Client>(tokens, pool_.get(), &metrics_, budget, vocab_);
  }
  // Runs a round. Returns the number of drafted tokens.
  size_t Round(Client& client, int k = 4) {
    v1::ItemTiming timing;
    client.drafter.Begin({k});
    const Proposal proposal = Run(client.drafter.Take(&timing));
    client.drafter.OnVerdict(client.generation.size(), {});
    return proposal.size();
  }
  void Reconnect() { AwaitUp(); }
  double ErrorsFor(const std::string& reason) {
    return CounterOf(registry_, "outrider_draft_errors_total", reason);
  }

  int vocab_ = 4096;  // of the target and of the draft
  prometheus::Registry registry_;
  Metrics metrics_{registry_, 1};
};

TEST_F(ModelDrafterTest, AnAnswerWithoutATokenIsAFailure) {
  const auto client = MakeClient();
  EXPECT_EQ(Round(*client), 4u);
  EXPECT_EQ(client->drafter.status(), DraftStatus::kUsable);
  server_.Do(DraftAction::kAnswer);
  EXPECT_EQ(Round(*client), 0u);
  EXPECT_EQ(client->drafter.status(), DraftStatus::kFailed);
  EXPECT_EQ(ErrorsFor("PROPOSAL_EMPTY"), 1);
}

TEST_F(ModelDrafterTest, ALateAnswerIsAFailure) {
  server_.Do(DraftAction::kIgnore);
  const auto client = MakeClient(3, std::chrono::milliseconds(1));
  EXPECT_EQ(Round(*client), 0u);
  EXPECT_EQ(client->drafter.status(), DraftStatus::kFailed);
}

TEST_F(ModelDrafterTest, AfterItsEndNothingIsSentThatNobodyWouldRelease) {
  const auto client = MakeClient();
  client->drafter.Stop();
  EXPECT_EQ(Round(*client), 0u);
  EXPECT_EQ(server_.TakeCount(), 0);
}

TEST_F(ModelDrafterTest, ADraftThatForgotASequenceIsSentAllOfItAndDrafts) {
  const auto client = MakeClient(5);
  Round(*client);
  std::vector<v1::SequenceUpdate> sent;
  server_.Do([&](const auto& item, auto* result) {
    sent.push_back(UpdateOf(item));
    if (sent.size() > 1) return Propose(item, result);
    *result->mutable_status() = ToProto(absl::NotFoundError("forgotten"));
    result->set_cached(0);
    return DraftAction::kAnswer;
  });
  EXPECT_EQ(Round(*client), 4u);
  EXPECT_EQ(client->drafter.status(), DraftStatus::kUsable);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_GT(sent[0].base(), 0u);
  EXPECT_EQ(sent[1].base(), 0u);
  EXPECT_EQ(sent[1].tokens_size(), 5);
  EXPECT_TRUE(sent[1].has_params());
}

TEST_F(ModelDrafterTest, MoreTokensThanWereAskedForAreNoProposal) {
  server_.Do([](const auto& item, auto* result) {
    Propose(item, result);
    result->add_nodes()->set_token(7);
    return DraftAction::kAnswer;
  });
  EXPECT_EQ(Round(*MakeClient()), 0u);
  EXPECT_EQ(ErrorsFor("PROPOSAL_TOO_LONG"), 1);
}

TEST_F(ModelDrafterTest, WhenToStopIsSentAndHowSureTheDraftWasComesBack) {
  v1::ProposeItem sent;
  bool knows = true;
  server_.Do([&](const auto& item, auto* result) {
    sent = item.propose();
    Propose(item, result);
    if (knows) result->mutable_confidence()->Add(0.5f);
    while (result->nodes_size() > 1) result->mutable_nodes()->RemoveLast();
    return DraftAction::kAnswer;
  });
  const auto client = MakeClient();
  v1::ItemTiming timing;
  const auto round = [&](const DraftLength& length) {
    client->drafter.Begin(length);
    Proposal proposal = Run(client->drafter.Take(&timing));
    client->drafter.OnVerdict(client->generation.size(), {});
    return proposal;
  };
  const Proposal proposal = round({.most = 4, .stop = DraftStop{.acceptance = {.25f, .75f}, .least = .5f}});
  ASSERT_EQ(proposal.size(), 1u);
  EXPECT_EQ(proposal[0].confidence, 0.5f);
  EXPECT_EQ(client->drafter.status(), DraftStatus::kUsable);
  EXPECT_EQ(sent.draft_tokens(), 4u);
  EXPECT_THAT(sent.stop().acceptance(), testing::ElementsAre(.25f, .75f));
  EXPECT_EQ(sent.stop().least(), .5f);
  knows = false;
  EXPECT_EQ(round({.most = 4})[0].confidence, 0);
  EXPECT_FALSE(sent.has_stop());
}

TEST_F(ModelDrafterTest, ADraftThatKeepsFailingIsLeftAloneByAll) {
  server_.Do(DraftAction::kAnswer);
  const auto client = MakeClient(), other = MakeClient();
  for (int i = 0; i < CircuitBreaker::kFailures; ++i) Round(*client);
  server_.TakeCount();
  EXPECT_EQ(Round(*other), 0u);
  EXPECT_EQ(other->drafter.status(), DraftStatus::kAway);
  EXPECT_EQ(server_.TakeCount(), 0);
}

TEST_F(ModelDrafterTest, ADraftThatIsDownIsAwayAndOneThatCameBackIsAskedAtOnce) {
  server_.Do(DraftAction::kAnswer);
  const auto client = MakeClient();
  for (int i = 0; i < CircuitBreaker::kFailures; ++i) Round(*client);
  Close();
  EXPECT_EQ(Round(*client), 0u);
  EXPECT_EQ(client->drafter.status(), DraftStatus::kAway);
  server_.Do(Propose);
  ASSERT_NO_FATAL_FAILURE(Listen());
  Reconnect();
  EXPECT_EQ(Round(*client), 4u);
}

TEST_F(ModelDrafterTest, AFullDraftIsLeftAloneByThatSequenceOnly) {
  server_.Do([](const auto& /*item*/, auto* result) { return Full(absl::Minutes(1), result); });
  const auto client = MakeClient();
  EXPECT_EQ(Round(*client), 0u);
  EXPECT_EQ(client->drafter.status(), DraftStatus::kFailed);
  server_.TakeCount();
  for (int i = 0; i < 5; ++i) {
    Round(*client);
    EXPECT_EQ(client->drafter.status(), DraftStatus::kUsable) << "the round is plain by choice";
  }
  EXPECT_EQ(server_.TakeCount(), 0);
  server_.Do(Propose);
  EXPECT_EQ(Round(*MakeClient()), 4u);
}

TEST_F(ModelDrafterTest, ASequenceThatFillsTheDraftsContextIsNotSentToIt) {
  const size_t context = server_.info.max_context();
  EXPECT_EQ(Round(*MakeClient(context - 2)), 2u) << "as many as fit";
  server_.TakeCount();
  const auto client = MakeClient(context);
  client->drafter.Begin({});
  EXPECT_EQ(Round(*client), 0u);
  EXPECT_EQ(client->drafter.status(), DraftStatus::kUsable);
  EXPECT_EQ(server_.TakeCount(), 0);
}

TEST_F(ModelDrafterTest, ASequenceWithATokenBeyondTheDraftsVocabularyIsNotSentToIt) {
  vocab_ = 5000;
  const auto client = MakeClient();
  EXPECT_EQ(Round(*client), 4u);
  EXPECT_EQ(server_.TakeCount(), 1);
  Verdict plain;
  plain.token = 4096;
  client->generation.Commit({}, plain);
  EXPECT_EQ(Round(*client), 0u);
  EXPECT_EQ(server_.TakeCount(), 0);
}

TEST_F(ModelDrafterTest, ATokenBeyondTheTargetsVocabularyIsNoProposal) {
  vocab_ = 7;
  const auto client = MakeClient();
  EXPECT_EQ(Round(*client), 0u);
  EXPECT_EQ(ErrorsFor("DRAFT_TOKEN_OUT_OF_RANGE"), 1);
}

TEST_F(ModelDrafterTest, AnItemThatEndsTheConnectionThreeTimesInARowIsTheLastOfItsGeneration) {
  server_.Do(DraftAction::kDropStream);
  const auto client = MakeClient();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Round(*client), 0u);
    EXPECT_EQ(client->drafter.status(), DraftStatus::kFailed);
    Reconnect();
  }
  EXPECT_EQ(server_.TakeCount(), 3);
  server_.Do(Propose);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Round(*client), 0u);
  EXPECT_EQ(server_.TakeCount(), 0);
  EXPECT_EQ(ErrorsFor("ITEM_LOST"), 1);
  EXPECT_EQ(Round(*MakeClient()), 4u) << "others are drafted for";
}

TEST_F(ModelDrafterTest, ASuspectDoesWithoutADraftWhileAnotherIsOnItsWay) {
  server_.Do(DraftAction::kDropStream);
  const auto client = MakeClient();
  for (int i = 0; i < 2; ++i) {
    Round(*client);
    Reconnect();
  }
  server_.Do(Propose);
  {
    const TurnQueue::Turn other(&link_->suspects());
    EXPECT_EQ(Round(*client), 0u);
    EXPECT_EQ(client->drafter.status(), DraftStatus::kAway);
  }
  EXPECT_EQ(Round(*client), 4u);
  const TurnQueue::Turn other(&link_->suspects());
  EXPECT_EQ(Round(*client), 4u) << "the answer has cleared it";
}

class TwoDraftsTest : public ModelDrafterTest {
 protected:
  void SetUp() override {
    other_.info.set_boot_id(2);
    other_.Do(Propose);
    service_of_other_ = std::make_unique<FakeDraft::Service>(other_);
    auto server =
        RpcServer::Start(address_of_other_, {}, {service_of_other_.get()}, polling_of_other_.poller());
    ASSERT_TRUE(server.ok()) << server.status();
    rpc_of_other_ = *std::move(server);
    service_of_other_->Serve(*rpc_of_other_);
    ModelDrafterTest::SetUp();
    pool_->servers()[1]->link->Connect();
    RunUntil([this] { return pool_->servers()[1]->link->up(); });
  }
  void TearDown() override {
    pool_->Stop();
    while (!pool_->stopped()) context_.RunSome(Clock::time_point::max());
  }
  void MakeLink(LinkOptions options) override { MakePool(options, {address_, address_of_other_}); }
  // The draft that the only sequence is on.
  FakeDraft& Home() { return pool_->servers()[0]->sequences == 1 ? server_ : other_; }

  const std::string address_of_other_ = "unix:" + folder_.path() + "/other";
  FakeDraft other_;
  PollingThread polling_of_other_;
  std::unique_ptr<FakeDraft::Service> service_of_other_;
  std::unique_ptr<RpcServer> rpc_of_other_;
};

TEST_F(TwoDraftsTest, AfterARoundThatItsDraftFailedASequenceAsksTheOther) {
  const auto client = MakeClient(3, std::chrono::milliseconds(200));
  EXPECT_EQ(Round(*client), 4u);
  EXPECT_EQ(Round(*client), 4u);
  FakeDraft& first = Home();
  first.Do(DraftAction::kIgnore);
  EXPECT_EQ(Round(*client), 0u);
  EXPECT_EQ(Round(*client), 4u);
  EXPECT_NE(&Home(), &first);
  Home().Do(DraftAction::kIgnore);
  EXPECT_EQ(Round(*client), 0u);
  EXPECT_EQ(Round(*client), 0u) << "nor does the first answer";
  EXPECT_EQ(client->drafter.status(), DraftStatus::kFailed);
}

}  // namespace
}  // namespace outrider
