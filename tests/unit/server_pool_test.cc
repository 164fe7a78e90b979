// Pools of fake targets that answer as a test tells them.
#include "coordinator/servers/server_pool.h"

#include <gmock/gmock.h>

#include "tests/unit/pool_testing.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

class ServerPoolTest : public TargetPoolFixture {
 protected:
  // A settled pin, of a sequence of its own.
  struct Pinned {
    Pinned(TargetPool* pool, const std::string& id, const std::string& fork_of = "") : pin(pool), id(id) {
      is_settled = Settle(fork_of);
    }
    bool Settle(const std::string& fork_of = "") { return pin.Settle(id, std::vector<TokenId>(), fork_of); }
    std::string address() const { return pin.server()->address; }

    TargetPool::Pin pin;
    const std::string id;
    bool is_settled;
  };
  std::unique_ptr<Pinned> Pin(const std::string& id, const std::string& fork_of = "") {
    return std::make_unique<Pinned>(pool_.get(), id, fork_of);
  }
};

TEST_F(ServerPoolTest, SequencesAreSpreadAndCountedWhileTheyAreThere) {
  StartTwo();
  std::vector<std::unique_ptr<Pinned>> pins;
  for (int i = 0; i < 10; ++i) pins.push_back(Pin(std::to_string(i)));
  for (const auto& server : pool_->servers()) EXPECT_EQ(server->sequences, 5);
  pins.clear();
  for (const auto& server : pool_->servers()) EXPECT_EQ(server->sequences, 0);
}

TEST_F(ServerPoolTest, ASequenceStaysWhereItIsHoweverMuchIsThere) {
  StartTwo();
  const auto first = Pin("first");
  const std::string home = first->address();
  std::vector<std::unique_ptr<Pinned>> others;
  for (int i = 0; i < 9; ++i) others.push_back(Pin(std::to_string(i)));
  std::erase_if(others, [&](const auto& other) { return other->address() != home; });
  EXPECT_TRUE(first->Settle());
  EXPECT_EQ(first->address(), home);
}

TEST_F(ServerPoolTest, ACopyGoesToItsOriginal) {
  StartTwo();
  const auto original = Pin("original");
  const auto second = Pin("second");
  EXPECT_NE(second->address(), original->address());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Pin("copy", "original")->address(), original->address());
  const auto copy = Pin("copy", "second");
  EXPECT_EQ(copy->address(), second->address());
}

TEST_F(ServerPoolTest, ASequenceMovesWhenItsServerGoesAndStaysThen) {
  StartTwo();
  const auto pinned = Pin("one");
  const size_t home = pinned->address() == Address(0) ? 0 : 1;
  running_[home]->rpc = nullptr;
  AwaitUp(1);
  EXPECT_TRUE(pinned->Settle());
  EXPECT_EQ(pinned->address(), Address(1 - home));
  running_[home]->Listen();
  AwaitUp(2);
  EXPECT_TRUE(pinned->Settle());
  EXPECT_EQ(pinned->address(), Address(1 - home)) << "nothing happened to this one";
}

TEST_F(ServerPoolTest, AServerThatIsGoingAwayIsLeft) {
  StartTwo();
  const auto pinned = Pin("one");
  const size_t home = pinned->address() == Address(0) ? 0 : 1;
  running_[home]->service->SayGoingAway();
  RunUntil([&] { return States()[Address(home)].going_away(); });
  EXPECT_TRUE(States()[Address(home)].up());
  EXPECT_TRUE(pinned->Settle());
  EXPECT_EQ(pinned->address(), Address(1 - home));
  running_[1 - home]->service->SayGoingAway();
  RunUntil([&] { return States()[Address(1 - home)].going_away(); });
  EXPECT_FALSE(pinned->Settle()) << "nobody is left";
}

TEST_F(ServerPoolTest, AServerThatFailedASequenceIsLeftIfThereIsAnother) {
  StartTwo();
  const auto pinned = Pin("one");
  const std::string home = pinned->address();
  pinned->pin.Avoid();
  EXPECT_TRUE(pinned->Settle());
  EXPECT_NE(pinned->address(), home);
  const std::string other = pinned->address();
  running_[home == Address(0) ? 0 : 1]->rpc = nullptr;
  AwaitUp(1);
  pinned->pin.Avoid();
  EXPECT_TRUE(pinned->Settle());
  EXPECT_EQ(pinned->address(), other) << "there is no other";
}

TEST_F(ServerPoolTest, AServerWhoseBreakerIsOpenIsLeft) {
  StartTwo();
  const auto pinned = Pin("one");
  const std::string home = pinned->address();
  CircuitBreaker& breaker = pinned->pin.server()->breaker;
  for (int i = 0; i < CircuitBreaker::kFailures; ++i) breaker.TryPass(Clock::now())->Fail(Clock::now());
  EXPECT_TRUE(pinned->Settle());
  EXPECT_NE(pinned->address(), home);
}

TEST_F(ServerPoolTest, WhatOthersHaveAtAServerCounts) {
  Start().fake.load = 7;
  Start();
  Connect({Address(0), Address(1)});
  AwaitUp(2);
  std::vector<std::unique_ptr<Pinned>> pins;
  for (int i = 0; i < 7; ++i) pins.push_back(Pin(std::to_string(i)));
  EXPECT_EQ(ServerAt(Address(0))->sequences, 0);
  EXPECT_EQ(ServerAt(Address(1))->sequences, 7);
}

TEST_F(ServerPoolTest, AServerWithOtherWeightsIsRefusedAndSaysWhy) {
  Start();
  Connect({Address(0), "unix:" + folder_.path() + "/2"});
  AwaitUp(1);
  running_.push_back(std::make_unique<RunningTarget>(folder_.path(), 2));
  running_.back()->fake.info.set_weights_hash(2);
  running_.back()->Listen();
  RunUntil([&] { return !States()[Address(1)].problem().empty(); });
  EXPECT_THAT(States()[Address(1)].problem(), testing::HasSubstr("other weights"));
  EXPECT_THAT(Up(), ElementsAre(Address(0)));
}

TEST_F(ServerPoolTest, AServerThatComputesOtherBitsIsRefused) {
  Start().fake.info.set_numerics("native float32 avx2");
  Connect({Address(0), "unix:" + folder_.path() + "/2"});
  AwaitUp(1);
  running_.push_back(std::make_unique<RunningTarget>(folder_.path(), 2));
  running_.back()->fake.info.set_numerics("native float32 avx512");
  running_.back()->Listen();
  RunUntil([&] { return !States()[Address(1)].problem().empty(); });
  EXPECT_THAT(States()[Address(1)].problem(), testing::HasSubstr("native float32 avx512"));
}

TEST_F(ServerPoolTest, AWaitForAChangeEndsWithOneOrWhenWhoeverWaitsIsWoken) {
  StartTwo();
  Event wake(context_.get_executor());
  bool over = false;
  const auto wait = [&]() -> asio::awaitable<void> {
    over = false;
    co_await pool_->WaitChange(wake, Clock::time_point::max());
    over = true;
  };
  for (const auto& change : {std::function<void()>([&] { wake.Notify(); }),
                             std::function<void()>([&] { running_[0]->rpc = nullptr; })}) {
    asio::co_spawn(context_.get_executor(), wait, asio::detached);
    while (context_.RunSome(Clock::now())) continue;
    EXPECT_FALSE(over);
    change();
    RunUntil([&] { return over; });
  }
}

TEST_F(ServerPoolTest, LimitsAreThoseThatAllServersKeep) {
  Start().fake.info.set_max_context(1000);
  RunningTarget& other = Start();
  other.fake.info.set_max_draft_tokens(3);
  other.fake.info.set_kv_blocks(50);
  other.fake.info.set_block_size(8);
  Connect({Address(0), Address(1)});
  EXPECT_EQ(pool_->info(), nullptr);
  AwaitUp(2);
  EXPECT_EQ(pool_->info()->max_context(), 1000u);
  EXPECT_EQ(pool_->info()->max_draft_tokens(), 3u);
  EXPECT_EQ(pool_->info()->kv_blocks() * pool_->info()->block_size(), 400u);
}

TEST_F(ServerPoolTest, ANameIsResolvedAnewAndStandsForWhatIsFound) {
  Start();
  Start();
  resolved_ = std::vector{Address(0)};
  Connect({"dns:///targets:7072"});
  AwaitUp(1);
  resolved_ = std::vector{Address(0), Address(1)};
  AwaitUp(2);
  EXPECT_THAT(Up(), UnorderedElementsAre(Address(0), Address(1)));
}

TEST_F(ServerPoolTest, AnAddressThatIsGoneIsLeftOnceItsServerIs) {
  Start();
  Start();
  resolved_ = std::vector{Address(0), Address(1)};
  Connect({"dns:///targets:7072"});
  AwaitUp(2);
  const auto at_first = Pin("one"), at_second = Pin("two");
  resolved_ = std::vector{Address(1)};
  RunUntil([&] { return !ServerAt(Address(0))->is_listed; });
  EXPECT_EQ(pool_->servers().size(), 2u) << "requests are there";
  running_[0]->rpc = nullptr;
  RunUntil([&] { return pool_->servers().size() == 1; });
  EXPECT_TRUE(at_first->Settle());
  EXPECT_TRUE(at_second->Settle());
  EXPECT_EQ(ServerAt(Address(1))->sequences, 2);
}

TEST_F(ServerPoolTest, WhileANameDoesNotResolveItsServersStay) {
  Start();
  resolved_ = std::vector{Address(0)};
  Connect({"dns:///targets:7072"});
  AwaitUp(1);
  resolved_ = absl::UnavailableError("no name server");
  RunUntil([&] { return States().contains("targets:7072"); });
  EXPECT_EQ(States()["targets:7072"].problem(), "no name server");
  EXPECT_THAT(Up(), ElementsAre(Address(0)));
}

TEST_F(ServerPoolTest, AnAddressThatOnlyLooksLikeANameIsRefused) {
  const auto pool = TargetPool::Create(
      context_, {.addresses = {"dns:///targets"}}, [](const v1::ServerInfo&) { return absl::OkStatus(); },
      [] {});
  EXPECT_EQ(pool.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace outrider
