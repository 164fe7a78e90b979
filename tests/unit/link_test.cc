// The coordinator's end of a connection, against a fake target that answers as a test tells it.
#include "coordinator/servers/link.h"

#include <gtest/gtest.h>

#include "coordinator/servers/link_call.h"
#include "tests/unit/link_testing.h"

namespace outrider {
namespace {

using Action = FakeTarget::Action;

v1::TargetItem Item(const std::string& sequence_id, uint64_t round) {
  v1::TargetItem item;
  item.mutable_verify()->mutable_sequence()->set_sequence_id(sequence_id);
  item.mutable_verify()->mutable_sequence()->set_round(round);
  return item;
}

class LinkTest : public LinkFixture<FakeTarget> {
 protected:
  std::unique_ptr<TargetLink::Call> Start(uint64_t round) {
    return link_->Start(Item("one", round), "one", round);
  }
  TargetLink::Answer Answer(TargetLink::Call& call, Clock::duration patience = kLong) {
    return Run(call.Wait(Clock::now() + patience));
  }
  absl::Status Wait(TargetLink::Call& call, Clock::duration patience = kLong) {
    return Answer(call, patience).status;
  }
};

TEST_F(LinkTest, GivesTheAnswerToTheCallThatAskedForIt) {
  Connect();
  const auto first = Start(1);
  const auto second = Start(2);
  EXPECT_EQ(Run(second->Wait(Clock::now() + kLong)).result.round(), 2u);
  EXPECT_EQ(Run(first->Wait(Clock::now() + kLong)).result.round(), 1u);
}

TEST_F(LinkTest, AnAnswerThatCameBeforeItWasWaitedForIsTakenEvenAfterTheDeadline) {
  Connect();
  const auto first = Start(1);
  const auto second = Start(2);
  ASSERT_TRUE(Wait(*second).ok()) << "answers come in order, so the first is there too";
  EXPECT_TRUE(Wait(*first, -kLong).ok());
}

TEST_F(LinkTest, ACallThatNobodyAnswersEndsAtItsDeadline) {
  Connect();
  server_.Do(Action::kIgnore);
  const auto call = Start(1);
  EXPECT_EQ(Wait(*call, std::chrono::milliseconds(1)).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(LinkTest, ACallThatIsCancelledEndsAtOnce) {
  Connect();
  server_.Do(Action::kIgnore);
  const auto call = Start(1);
  asio::post(context_.get_executor(), [&call] { call->Cancel(); });
  EXPECT_EQ(Wait(*call).code(), absl::StatusCode::kCancelled);
}

TEST_F(LinkTest, AnAnswerThatNobodyWantsAnyMoreIsDropped) {
  Connect();
  Start(1).reset();
  EXPECT_TRUE(Wait(*Start(2)).ok());
}

TEST_F(LinkTest, AnAnswerForAnotherRoundOrSequenceIsCountedAndIsNobodys) {
  int unexpected = 0;
  Connect({.on_unexpected = [&unexpected] { ++unexpected; }});
  const auto expect_none = [this](auto spoil) {
    server_.Do([spoil](const v1::TargetItem& item, v1::VerifyResult* result) {
      if (UpdateOf(item).round() == 1) spoil(result);
      return Action::kAnswer;
    });
    const auto call = Start(1);
    ASSERT_TRUE(Wait(*Start(2)).ok()) << "answers come in order, so the first was there before";
    EXPECT_EQ(Wait(*call, std::chrono::milliseconds(1)).code(), absl::StatusCode::kDeadlineExceeded);
  };
  expect_none([](v1::VerifyResult* result) { result->set_round(77); });
  EXPECT_EQ(unexpected, 1);
  expect_none([](v1::VerifyResult* result) { result->set_sequence_id("another"); });
  EXPECT_EQ(unexpected, 2);
}

TEST_F(LinkTest, WithoutAServerACallIsUnavailableAndNotLost) {
  Listen();
  MakeLink();
  const TargetLink::Answer answer = Answer(*Start(1));
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(answer.status), "TARGET_UNAVAILABLE");
  EXPECT_FALSE(answer.lost) << "it was never sent";
}

TEST_F(LinkTest, WhenTheServerGoesCallsInFlightAreUnavailableAndLost) {
  Connect();
  server_.Do(Action::kIgnore);
  const auto call = Start(1);
  rpc_->Shutdown(absl::ZeroDuration());
  const TargetLink::Answer answer = Answer(*call);
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(answer.lost);
  EXPECT_FALSE(link_->up());
}

TEST_F(LinkTest, AServerThatAnswersNothingIsTakenForLostAndConnectedToAgain) {
  Connect({.item_timeout = std::chrono::milliseconds(20)});
  server_.Do(Action::kIgnore);
  const auto call = Start(1);
  EXPECT_TRUE(Answer(*call).lost);
  AwaitUp();
  EXPECT_EQ(link_->connections(), 2u);
}

TEST_F(LinkTest, AnItemThatIsNotAnsweredIsLostWhileOthersAre) {
  Connect({.item_timeout = std::chrono::seconds(1)});
  server_.Do([](const v1::TargetItem& item, v1::VerifyResult*) {
    return UpdateOf(item).round() == 1 ? Action::kIgnore : Action::kAnswer;
  });
  const auto lost = Start(1);
  uint64_t round = 1;
  while (lost->answer() == nullptr) ASSERT_TRUE(Wait(*Start(++round)).ok());
  EXPECT_TRUE(lost->answer()->lost);
  EXPECT_EQ(lost->answer()->status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(link_->connections(), 1u) << "the server works";
}

TEST_F(LinkTest, AServerThatCanBeReplacedIsTakenForHangingSooner) {
  Connect();
  link_->set_replaceable(true);
  ASSERT_TRUE(Wait(*Start(1)).ok()) << "so that it is known how long an item takes";
  EXPECT_TRUE(link_->answers());
  server_.Do(Action::kIgnore);
  const auto call = Start(2);
  EXPECT_TRUE(Answer(*call).lost);
  EXPECT_FALSE(link_->answers());
  server_.Do(Action::kAnswer);
  AwaitUp();
  EXPECT_FALSE(link_->answers()) << "to be connected is no answer";
  ASSERT_TRUE(Wait(*Start(3)).ok());
  EXPECT_TRUE(link_->answers());
}

TEST_F(LinkTest, AServerThatIsGoingAwaySaysSoAlsoWhileNobodyAsks) {
  Connect();
  EXPECT_FALSE(link_->going_away());
  const int changes = changes_;
  service_->SayGoingAway();
  RunUntil([this] { return link_->going_away(); });
  EXPECT_GT(changes_, changes);
  EXPECT_TRUE(link_->up());
  EXPECT_TRUE(Wait(*Start(1)).ok()) << "it answers what it gets";
  Close();
  Listen();
  AwaitUp();
  EXPECT_FALSE(link_->going_away()) << "that was another process";
}

// Answers nothing, and reports each change of whether it is about to end.
class Undecided final : public v1::Target::Service {
 public:
  grpc::Status Verify(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<v1::VerifyResponse, v1::VerifyRequest>* stream) override {
    v1::VerifyResponse response;
    response.mutable_info()->set_boot_id(1);
    bool said = false;
    stream->Write(response);
    while (!context->IsCancelled()) {
      if (said == leaves) continue;
      said = !said;
      response.Clear();
      response.set_going_away(said);
      stream->Write(response);
    }
    return grpc::Status::CANCELLED;
  }

  std::atomic<bool> leaves = false;
};

TEST_F(LinkTest, AServerThatStaysAfterAllSaysSoOnTheSameConnection) {
  Undecided undecided;
  rpc_ = RpcServer::Start(address_, {}, {&undecided}).value();
  MakeLink();
  link_->Connect();
  AwaitUp();
  for (const bool leaves : {true, false, true, false}) {
    const int changes = changes_;
    undecided.leaves = leaves;
    RunUntil([&] { return link_->going_away() == leaves; });
    EXPECT_GT(changes_, changes);
    EXPECT_EQ(link_->connections(), 1u);
  }
  Close();
}

TEST_F(LinkTest, ItemsOfOthersAreToldFromOurs) {
  Connect();
  EXPECT_EQ(link_->pace().load_of_others(), 0);
  server_.load = 1;
  ASSERT_TRUE(Wait(*Start(1)).ok());
  EXPECT_EQ(link_->pace().load(), 1u);
  EXPECT_EQ(link_->pace().load_of_others(), 0) << "that was this one";
  server_.load = 6;
  for (uint64_t round = 2; round < 40; ++round) ASSERT_TRUE(Wait(*Start(round)).ok());
  EXPECT_NEAR(link_->pace().load_of_others().value_or(0), 5, 0.01);
}

TEST_F(LinkTest, AServerIsPresentOnceItWasMetAndUntilItHasBeenAwayForLong) {
  Listen();
  MakeLink({.patience = std::chrono::milliseconds(50)});
  EXPECT_FALSE(link_->present());
  link_->Connect();
  AwaitUp();
  EXPECT_TRUE(link_->present());
  Close();
  EXPECT_TRUE(link_->present()) << "it may come back";
  const int changes = changes_;
  RunUntil([this] { return !link_->present(); });
  EXPECT_GT(changes_, changes) << "whoever reports readiness has to hear of it";
  ASSERT_NO_FATAL_FAILURE(Listen());
  RunUntil([this] { return link_->present(); });
  EXPECT_TRUE(link_->up());
}

TEST_F(LinkTest, AServerThatComesBackIsConnectedToWithinAFewAttempts) {
  Connect();
  Close();
  const auto run_through = [this](int attempts) {
    RunUntil([&, end = changes_ + attempts] { return changes_ >= end; });
  };
  run_through(3);  // attempts in vain
  Listen();
  const int before = changes_;
  AwaitUp();
  // It would take dozens of attempts if only gRPC's own timers made progress with the connection.
  EXPECT_LE(changes_ - before, 8);
}

TEST_F(LinkTest, AChannelThatIsDestroyedEndsItsStream) {
  Listen();
  auto channel =
      std::make_unique<Channel<TargetProtocol>>(context_, address_, "", grpc::InsecureChannelCredentials());
  bool up = false;
  absl::Status end;
  channel->Open(
      {[&](v1::VerifyResponse&& /*info*/) { asio::post(context_.get_executor(), [&up] { up = true; }); },
       [&](const absl::Status& status) {
         asio::post(context_.get_executor(), [&end, status] { end = status; });
       }});
  RunUntil([&] { return up; });
  channel = nullptr;
  RunUntil([&] { return !end.ok(); });
  EXPECT_TRUE(absl::IsCancelled(end)) << end;
}

TEST_F(LinkTest, AServerReadsWhatWasPostedBeforeTheLinkStops) {
  Connect();
  const auto call = Start(1);
  for (int i = 0; i < 100; ++i) link_->PostRelease(absl::StrCat("sequence", i));
  link_->Stop();
  RunUntil([this] { return link_->stopped(); });
  EXPECT_EQ(server_.released, 100);
  EXPECT_FALSE(link_->up());
}

TEST_F(LinkTest, AnItemThatIsNotAnsweredDoesNotKeepALinkThatStops) {
  Connect();
  server_.Do(Action::kIgnore);
  const auto call = Start(1);
  link_->Stop();
  EXPECT_EQ(Wait(*call).code(), absl::StatusCode::kCancelled);
}

TEST_F(LinkTest, TheServersOwnReasonIsWhatAStreamEndsWith) {
  Listen();
  Channel<DraftProtocol> channel(context_, address_, "", grpc::InsecureChannelCredentials());
  absl::Status end;
  channel.Open({[](v1::ProposeResponse&& /*response*/) {},
                [&](const absl::Status& status) {
                  asio::post(context_.get_executor(), [&end, status] { end = status; });
                }});
  RunUntil([&] { return !end.ok(); });
  EXPECT_TRUE(absl::IsUnimplemented(end)) << end;
}

TEST(TurnQueue, LetsOneAtATimeGoOnInTheOrderInWhichTheyCame) {
  TurnQueue queue;
  auto first = std::make_unique<TurnQueue::Turn>(&queue);
  auto second = std::make_unique<TurnQueue::Turn>(&queue);
  const TurnQueue::Turn third(&queue);
  EXPECT_TRUE(first->has_come());
  EXPECT_FALSE(second->has_come());
  second = nullptr;
  EXPECT_TRUE(first->has_come()) << "one that gave up waiting changes nothing";
  EXPECT_FALSE(third.has_come());
  first = nullptr;
  EXPECT_TRUE(third.has_come());
}

TEST(Backoff, DoublesUpToItsLimitAndBeginsAgainAfterASuccess) {
  using std::chrono::milliseconds;
  Backoff backoff(milliseconds(20), milliseconds(100));
  const auto expect_about = [&backoff](milliseconds nominal, milliseconds at_least = {}) {
    const Clock::duration pause = backoff.Next(at_least);
    EXPECT_GE(pause, nominal / 2);
    EXPECT_LE(pause, nominal * 3 / 2);
  };
  for (const int nominal : {20, 40, 80, 100, 100}) expect_about(milliseconds(nominal));
  expect_about(milliseconds(700), milliseconds(700));
  backoff.Reset();
  expect_about(milliseconds(20));
}

TEST(Backoff, DoesNotHaveAllWhoWaitComeBackAtOnce) {
  const auto pause = [] { return Backoff(std::chrono::seconds(1), std::chrono::seconds(1)).Next(); };
  EXPECT_NE(pause(), pause());
}

}  // namespace
}  // namespace outrider
