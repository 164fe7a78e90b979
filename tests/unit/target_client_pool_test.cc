// How verdicts are requested where there are several targets.
#include <gmock/gmock.h>
#include <prometheus/registry.h>

#include "coordinator/decode/target_client.h"
#include "tests/unit/pool_testing.h"
#include "tests/unit/test_tokenizer.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using Action = FakeTarget::Action;

constexpr TokenId kPoisonToken = 666;

Request Prompt(std::vector<TokenId> tokens) {
  Request request;
  request.prompt = std::move(tokens);
  request.max_tokens = 1000;
  request.params.set_rule(v1::RULE_COUPLED);
  return request;
}

Action Corrected7(const v1::TargetItem& /*item*/, v1::VerifyResult* result) {
  result->mutable_verdict()->set_token(7);
  result->mutable_verdict()->set_kind(v1::TOKEN_KIND_CORRECTED);
  return Action::kAnswer;
}

// Two targets, and a generation that is on one of them.
class TargetClientPoolTest : public TargetPoolFixture {
 protected:
  void SetUp() override {
    StartTwo();
    for (const auto& target : running_) target->fake.Do(Corrected7);
  }

  struct Client {
    Client(TargetPool* pool, Metrics* metrics, std::vector<TokenId> prompt)
        : generation(Prompt(std::move(prompt)), &TestTokenizer(), Clock::now()),
          target(pool, metrics, &generation, Clock::time_point::max(), Fork()) {}
    asio::awaitable<void> Verify() {
      Proposal proposal(1);
      proposal[0].token = 9;
      status = (co_await target.Verify(proposal)).status();
    }

    Generation generation;
    TargetClient target;
    std::optional<absl::Status> status;
  };
  std::unique_ptr<Client> MakeClient(std::vector<TokenId> prompt = {1, 2, 3, 4}) {
    return std::make_unique<Client>(pool_.get(), &metrics_, std::move(prompt));
  }
  absl::Status Verify(Client& client) {
    client.status.reset();
    asio::co_spawn(context_.get_executor(), client.Verify(), asio::detached);
    RunUntil([&] { return client.status.has_value(); });
    return *client.status;
  }
  // Runs the first round of a client. Returns the index of its target.
  size_t Begin(Client& client) {
    EXPECT_TRUE(Verify(client).ok());
    return ServerAt(Address(0))->sequences == 1 ? 0 : 1;
  }
  // Records the items that the target is sent.
  void Record(size_t target, std::vector<v1::VerifyItem>* items, Action action) {
    running_[target]->fake.Do([items, action](const v1::TargetItem& item, v1::VerifyResult* result) {
      items->push_back(item.verify());
      Corrected7(item, result);
      return action;
    });
  }

  prometheus::Registry registry_;
  Metrics metrics_{registry_, 1};
};

TEST_F(TargetClientPoolTest, ARoundThatItsTargetTakesAlongIsTheSameAtAnother) {
  const auto client = MakeClient();
  const size_t home = Begin(*client);
  std::vector<v1::VerifyItem> lost, again;
  Record(home, &lost, Action::kDropStream);
  Record(1 - home, &again, Action::kAnswer);
  EXPECT_TRUE(Verify(*client).ok());
  ASSERT_EQ(lost.size(), 1u);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_GT(lost[0].sequence().base(), 0u);
  EXPECT_EQ(again[0].sequence().base(), 0u);
  EXPECT_THAT(again[0].sequence().tokens(), ElementsAre(1, 2, 3, 4));
  EXPECT_TRUE(again[0].sequence().has_params());
  EXPECT_EQ(again[0].sequence().round(), lost[0].sequence().round());
  ASSERT_EQ(again[0].draft_size(), 1);
  EXPECT_EQ(again[0].draft(0).SerializeAsString(), lost[0].draft(0).SerializeAsString());
}

TEST_F(TargetClientPoolTest, ATargetThatIsGoingAwayIsLeftAtTheNextRoundAndToldSo) {
  const auto client = MakeClient();
  const size_t home = Begin(*client);
  running_[home]->service->SayGoingAway();
  RunUntil([&] { return ServerAt(Address(home))->link->going_away(); });
  std::vector<v1::VerifyItem> moved;
  Record(1 - home, &moved, Action::kAnswer);
  EXPECT_TRUE(Verify(*client).ok());
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_EQ(moved[0].sequence().base(), 0u);
  const auto is_released = [&] { return running_[home]->fake.released == 1; };
  while (!is_released()) context_.RunSome(Clock::now() + std::chrono::milliseconds(1));
}

TEST_F(TargetClientPoolTest, AnItemThatTargetsDieOfIsSentThreeTimesToAllOfThemTogether) {
  const auto drop_poison = [](const v1::TargetItem& item, v1::VerifyResult* result) {
    const auto& tokens = UpdateOf(item).tokens();
    const bool poisonous = std::find(tokens.begin(), tokens.end(), uint32_t{kPoisonToken}) != tokens.end();
    return poisonous ? Action::kDropStream : Corrected7(item, result);
  };
  for (const auto& target : running_) target->fake.Do(drop_poison);
  const auto guilty = MakeClient({1, kPoisonToken}), innocent = MakeClient({1, 2});
  EXPECT_EQ(ReasonOf(Verify(*guilty)), "ITEM_LOST");
  EXPECT_EQ(running_[0]->fake.TakeCount() + running_[1]->fake.TakeCount(), 3);
  EXPECT_TRUE(Verify(*innocent).ok());
}

TEST_F(TargetClientPoolTest, WithAllTargetsGoneARoundWaitsForTheFirstThatIsBack) {
  const auto client = MakeClient();
  const size_t home = Begin(*client);
  for (const auto& target : running_) target->rpc = nullptr;
  AwaitUp(0);
  asio::co_spawn(context_.get_executor(), client->Verify(), asio::detached);
  client->status.reset();
  while (context_.RunSome(Clock::now())) continue;
  EXPECT_FALSE(client->status);
  running_[1 - home]->Listen();
  RunUntil([&] { return client->status.has_value(); });
  EXPECT_TRUE(client->status->ok()) << *client->status;
}

TEST_F(TargetClientPoolTest, ASequenceIsReleasedWhereItIs) {
  const auto client = MakeClient();
  const size_t home = Begin(*client);
  client->target.Stop();
  EXPECT_EQ(ServerAt(Address(home))->sequences, 0);
  while (running_[home]->fake.released == 0) context_.RunSome(Clock::now() + std::chrono::milliseconds(1));
  EXPECT_EQ(running_[1 - home]->fake.released, 0);
}

}  // namespace
}  // namespace outrider
