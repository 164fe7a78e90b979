// The coordinator's end of a connection, against a target of gRPC's that answers as it is told.
#include "coordinator/link/link.h"

#include <gtest/gtest.h>

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <atomic>
#include <optional>

#include "common/rpc/batch_server.h"
#include "common/rpc/server.h"
#include "outrider/v1/target.grpc.pb.h"

namespace outrider {
namespace {

constexpr auto kLong = std::chrono::seconds(60);

// Answers every item, or, while it is silent, none.
class FakeTarget final : public v1::Target::CallbackService {
 public:
  grpc::ServerBidiReactor<v1::VerifyRequest, v1::VerifyResponse>* Verify(
      grpc::CallbackServerContext* /*context*/) override {
    return new Stream(
        info_,
        [this](v1::TargetItem&& item, const std::shared_ptr<Outbox<v1::VerifyResponse>>& results) {
          if (silent) return;
          v1::VerifyResult result;
          result.set_sequence_id(item.verify().sequence().sequence_id());
          result.set_round(item.verify().sequence().round());
          result.set_cached(7);
          results->Post(std::move(result));
        },
        &streams_);
  }

  std::atomic<bool> silent = false;

 private:
  using Stream = BatchServerStream<v1::VerifyRequest, v1::VerifyResponse>;

  const v1::ServerInfo info_;
  Stream::Set streams_;
};

v1::TargetItem Item(const std::string& sequence_id, uint64_t round) {
  v1::TargetItem item;
  item.mutable_verify()->mutable_sequence()->set_sequence_id(sequence_id);
  item.mutable_verify()->mutable_sequence()->set_round(round);
  return item;
}

class LinkTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(server_.ok()) << server_.status(); }
  void TearDown() override {
    link_->Stop();
    while (!link_->stopped()) io_.run_one();
  }

  void Connect() {
    link_->Connect();
    ASSERT_TRUE(Run(link_->WaitUp(Clock::now() + kLong)));
  }
  std::unique_ptr<TargetLink::Call> Start(uint64_t round) {
    return link_->Start(Item("one", round), "one", round);
  }
  absl::Status Wait(TargetLink::Call& call, Clock::duration patience = kLong) {
    return Run(call.Wait(Clock::now() + patience)).status;
  }

  template <class T>
  T Run(asio::awaitable<T> coroutine) {
    std::optional<T> result;
    asio::co_spawn(io_, std::move(coroutine),
                   [&result](const std::exception_ptr& /*error*/, T value) { result = std::move(value); });
    while (!result) io_.run_one();
    return *std::move(result);
  }

  FakeTarget target_;
  absl::StatusOr<std::unique_ptr<RpcServer>> server_ =
      RpcServer::Start({.listen = "127.0.0.1:0", .health_listen = ""}, &target_);
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(io_);
  std::shared_ptr<TargetLink> link_ = std::make_shared<TargetLink>(
      io_.get_executor(), (*server_)->address(), grpc::InsecureChannelCredentials(),
      [](const v1::ServerInfo&) { return absl::OkStatus(); }, [] {});
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
  target_.silent = true;
  const auto call = Start(1);
  EXPECT_EQ(Wait(*call, std::chrono::milliseconds(1)).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(LinkTest, ACallThatIsCancelledEndsAtOnce) {
  Connect();
  target_.silent = true;
  const auto call = Start(1);
  asio::post(io_, [&call] { call->Cancel(); });
  EXPECT_EQ(Wait(*call).code(), absl::StatusCode::kCancelled);
}

TEST_F(LinkTest, AnAnswerThatNobodyWantsAnyMoreIsDropped) {
  Connect();
  Start(1).reset();
  EXPECT_TRUE(Wait(*Start(2)).ok());
}

TEST_F(LinkTest, WithoutAServerACallIsUnavailable) {
  const absl::Status status = Wait(*Start(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(status), "TARGET_UNAVAILABLE");
}

TEST_F(LinkTest, WhenTheServerGoesCallsInFlightAreUnavailable) {
  Connect();
  target_.silent = true;
  const auto call = Start(1);
  (*server_)->Shutdown(absl::ZeroDuration());
  EXPECT_EQ(Wait(*call).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(link_->up());
}

}  // namespace
}  // namespace outrider
