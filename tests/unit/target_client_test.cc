// How verdicts are requested, against a target that dies of an item, or is full.
#include "coordinator/decode/target_client.h"

#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include "tests/unit/pool_testing.h"
#include "tests/unit/test_tokenizer.h"

namespace outrider {
namespace {

using Action = FakeTarget::Action;

constexpr TokenId kPoison = 666;
constexpr TokenId kHarmless = 5;

Generation Sequence(std::vector<TokenId> prompt) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = 1000;
  return Generation(std::move(request), &TestTokenizer(), Clock::now());
}

bool Contains(const v1::TargetItem& item, TokenId token) {
  const auto& tokens = UpdateOf(item).tokens();
  return std::find(tokens.begin(), tokens.end(), static_cast<uint32_t>(token)) != tokens.end();
}

// Answers an item with a plain verdict, or with nothing if it only appends tokens.
Action Verdict7(const v1::TargetItem& item, v1::VerifyResult* result) {
  if (!item.verify().append_only()) result->mutable_verdict()->set_token(7);
  if (!item.verify().append_only()) result->mutable_verdict()->set_kind(v1::TOKEN_KIND_PLAIN);
  return Action::kAnswer;
}

Action Full(absl::Duration retry_after, v1::VerifyResult* result) {
  *result->mutable_status() = ToProto(BusyError("KV_EXHAUSTED", "full", retry_after));
  return Action::kAnswer;
}

// A generation and its client.
struct Client {
  Client(TargetPool* pool, Metrics* metrics, std::vector<TokenId> prompt, Clock::time_point deadline)
      : generation(Sequence(std::move(prompt))), target(pool, metrics, &generation, deadline, Fork()) {}

  asio::awaitable<absl::Status> Verify() {
    Proposal none;
    absl::StatusOr<TargetAnswer> answer = co_await target.Verify(none);
    co_return answer.status();
  }

  Generation generation;
  TargetClient target;
  std::optional<absl::Status> status;
};

class TargetClientTest : public PoolFixture<FakeTarget> {
 protected:
  void SetUp() override {
    server_.info.set_vocab_size(static_cast<uint32_t>(TestTokenizer().vocab_size()));
    server_.Do(Verdict7);
    Connect();
  }
  std::unique_ptr<Client> MakeClient(std::vector<TokenId> prompt,
                                     Clock::time_point deadline = Clock::time_point::max()) {
    return std::make_unique<Client>(pool_.get(), &metrics_, std::move(prompt), deadline);
  }
  // Every item with the poison ends the stream, and with it the items that wait for an answer. Nothing is
  // answered until the stream has ended `unanswered_deaths` times.
  void DieOfPoison(int unanswered_deaths = 0) {
    server_.Do([left = unanswered_deaths](const auto& item, auto* result) mutable {
      if (Contains(item, kPoison)) {
        --left;
        return Action::kDropStream;
      }
      return left > 0 ? Action::kIgnore : Verdict7(item, result);
    });
  }
  double ErrorsFor(const std::string& reason) {
    return CounterOf(registry_, "outrider_target_errors_total", reason);
  }

  prometheus::Registry registry_;
  Metrics metrics_{registry_, 1};
};

TEST_F(TargetClientTest, AnItemThatEndsTheConnectionThreeTimesInARowEndsItsRequest) {
  DieOfPoison();
  const auto client = MakeClient({1, kPoison});
  const absl::Status status = Run(client->Verify());
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReasonOf(status), "ITEM_LOST");
  EXPECT_EQ(server_.TakeCount(), 3);
  EXPECT_EQ(ErrorsFor("ITEM_LOST"), 1);
}

TEST_F(TargetClientTest, AnAnswerThatCannotBeTrueEndsItsRequestAndIsCounted) {
  int spoilt = 0;
  const auto expect_refused = [&](auto spoil) {
    server_.Do([spoil](const auto& item, auto* result) {
      const Action action = Verdict7(item, result);
      spoil(result);
      return action;
    });
    const absl::Status status = Run(MakeClient({1, kHarmless})->Verify());
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(ReasonOf(status), "VERDICT_INVALID");
    EXPECT_EQ(ErrorsFor("VERDICT_INVALID"), ++spoilt);
  };
  expect_refused([](v1::VerifyResult* result) { result->clear_verdict(); });
  expect_refused([](v1::VerifyResult* result) { result->mutable_verdict()->add_accepted(0); });
  expect_refused([](v1::VerifyResult* result) { result->mutable_verdict()->set_token(1u << 31); });
  expect_refused([](v1::VerifyResult* result) { result->mutable_verdict()->add_logprobs(); });
  expect_refused([](v1::VerifyResult* result) { result->add_prompt_logprobs(); });
  expect_refused([](v1::VerifyResult* result) { result->set_prefix_hit(3); });
}

TEST_F(TargetClientTest, LossesCountOnlyInARow) {
  const auto client = MakeClient({1, kHarmless});
  for (int i = 0; i < 3; ++i) {
    server_.Do([losses = 2](const auto& item, auto* result) mutable {
      return losses-- > 0 ? Action::kDropStream : Verdict7(item, result);
    });
    EXPECT_TRUE(Run(client->Verify()).ok());
    EXPECT_EQ(server_.TakeCount(), 3);
  }
}

TEST_F(TargetClientTest, ThePartsOfALongItemThatAreAnsweredDoNotClearTheOneThatIsNot) {
  DieOfPoison();
  std::vector<TokenId> prompt(9000, kHarmless);
  prompt.push_back(kPoison);
  EXPECT_EQ(ReasonOf(Run(MakeClient(std::move(prompt))->Verify())), "ITEM_LOST");
}

TEST_F(TargetClientTest, OthersThatWereInFlightGoOn) {
  // The item is lost twice, together with the poison.
  DieOfPoison(/*unanswered_deaths=*/2);
  const auto innocent = MakeClient({1, kHarmless}), guilty = MakeClient({1, kPoison});
  Spawn(innocent->Verify(), &innocent->status);
  Spawn(guilty->Verify(), &guilty->status);
  RunUntil([&] { return innocent->status && guilty->status; });
  EXPECT_TRUE(innocent->status->ok()) << *innocent->status;
  EXPECT_EQ(ReasonOf(*guilty->status), "ITEM_LOST");
}

TEST_F(TargetClientTest, AnItemThatWasLostTwiceIsSentOnlyWhenItsTurnHasCome) {
  DieOfPoison();
  auto other = std::make_unique<TurnQueue::Turn>(&link_->suspects());
  const auto client = MakeClient({1, kPoison});
  Spawn(client->Verify(), &client->status);
  RunUntil([&] { return link_->suspects().size() == 2; });
  EXPECT_EQ(server_.TakeCount(), 2);
  other = nullptr;
  RunUntil([&] { return client->status.has_value(); });
  EXPECT_EQ(server_.TakeCount(), 1);
}

TEST_F(TargetClientTest, WhoeverWaitsForATurnHasItsDeadlineAndCanBeStopped) {
  DieOfPoison();
  const TurnQueue::Turn other(&link_->suspects());
  const auto late = MakeClient({1, kPoison}, Clock::now() + std::chrono::seconds(2)),
             stopped = MakeClient({2, kPoison});
  Spawn(late->Verify(), &late->status);
  Spawn(stopped->Verify(), &stopped->status);
  RunUntil([&] { return late->status || link_->suspects().size() == 3; });
  stopped->target.Stop();
  RunUntil([&] { return late->status && stopped->status; });
  EXPECT_EQ(late->status->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(stopped->status->code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(link_->suspects().size(), 1u);
}

TEST_F(TargetClientTest, ATargetThatForgotASequenceIsSentAllOfItAgain) {
  const auto client = MakeClient({1, 2, 3, kHarmless});
  ASSERT_TRUE(Run(client->Verify()).ok());
  std::vector<v1::SequenceUpdate> sent;
  server_.Do([&](const auto& item, auto* result) {
    sent.push_back(UpdateOf(item));
    if (sent.size() > 1) return Verdict7(item, result);
    *result->mutable_status() = ToProto(absl::NotFoundError("forgotten"));
    result->set_cached(0);
    return Action::kAnswer;
  });
  EXPECT_TRUE(Run(client->Verify()).ok());
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_GT(sent[0].base(), 0u);
  EXPECT_FALSE(sent[0].has_params()) << "it knew them";
  EXPECT_EQ(sent[1].base(), 0u);
  EXPECT_EQ(sent[1].tokens_size(), 4);
  EXPECT_TRUE(sent[1].has_params());
  EXPECT_EQ(ErrorsFor("NOT_FOUND"), 1);
}

TEST_F(TargetClientTest, AFullTargetIsAskedAgainUntilItHasRoom) {
  server_.Do([refusals = 3](const auto& item, auto* result) mutable {
    return refusals-- > 0 ? Full(absl::Milliseconds(1), result) : Verdict7(item, result);
  });
  EXPECT_TRUE(Run(MakeClient({1, kHarmless})->Verify()).ok());
  EXPECT_EQ(server_.TakeCount(), 4);
}

TEST_F(TargetClientTest, AFullTargetIsLeftAloneForAsLongAsItAsks) {
  server_.Do([](const auto& /*item*/, auto* result) { return Full(absl::Minutes(1), result); });
  const auto client = MakeClient({1, kHarmless}, Clock::now() + std::chrono::seconds(1));
  const absl::Status status = Run(client->Verify());
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(server_.TakeCount(), 1);
}

TEST_F(TargetClientTest, AStopEndsThePauseThatAFullTargetAskedFor) {
  server_.Do([](const auto& /*item*/, auto* result) { return Full(absl::Minutes(1), result); });
  const auto client = MakeClient({1, kHarmless});
  Spawn(client->Verify(), &client->status);
  RunUntil([&] { return ErrorsFor("KV_EXHAUSTED") == 1; });
  client->target.Stop();
  RunUntil([&] { return client->status.has_value(); });
  EXPECT_EQ(client->status->code(), absl::StatusCode::kCancelled);
}

TEST_F(TargetClientTest, ATargetThatStaysAwayIsWaitedForAsLongAsTheLinkSaysOrUntilAStop) {
  Close();
  const auto client = MakeClient({1, kHarmless});
  Spawn(client->Verify(), &client->status);
  asio::post(context_.get_executor(), [&] { client->target.Stop(); });
  RunUntil([&] { return client->status.has_value(); });
  EXPECT_EQ(client->status->code(), absl::StatusCode::kCancelled);
}

class ImpatientTargetClientTest : public TargetClientTest {
 protected:
  void SetUp() override {
    server_.Do(Verdict7);
    Connect({.patience = std::chrono::milliseconds(20)});
  }
};

TEST_F(ImpatientTargetClientTest, ATargetThatStaysAwayTooLongEndsARequestSoThatItCanBeResumed) {
  Close();
  const absl::Status status = Run(MakeClient({1, kHarmless})->Verify());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(status), "TARGET_UNAVAILABLE");
}

}  // namespace
}  // namespace outrider
