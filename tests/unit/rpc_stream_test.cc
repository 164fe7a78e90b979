// Streams of batches between real gRPC servers and clients, and the outbox that batches.
#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include "absl/synchronization/notification.h"
#include "bench/polling_thread.h"
#include "common/rpc/batch_server.h"
#include "common/rpc/error.h"
#include "common/rpc/server.h"
#include "outrider/v1/target.grpc.pb.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;
using Results = Outbox<v1::VerifyResponse>;

constexpr size_t kAnswerBytes = 100 << 10;

v1::VerifyResult Result(uint64_t round, size_t bytes = 0) {
  v1::VerifyResult result;
  result.set_round(round);
  result.set_sequence_id(std::string(bytes, 'x'));
  return result;
}

// An outbox whose writes end when the test says so.
class OutboxTest : public ::testing::Test {
 protected:
  static std::vector<uint64_t> Rounds(const v1::VerifyResponse& response) {
    std::vector<uint64_t> rounds;
    for (const v1::VerifyResult& result : response.results()) rounds.push_back(result.round());
    return rounds;
  }

  std::vector<std::vector<uint64_t>> written_;
  Results outbox_{[this](const v1::VerifyResponse& response) { written_.push_back(Rounds(response)); },
                  /*max_bytes=*/1000};
};

TEST_F(OutboxTest, WhatIsPostedDuringAWriteLeavesWithTheNext) {
  for (uint64_t round : {1, 2, 3}) outbox_.Post(Result(round));
  outbox_.OnWritten();
  EXPECT_THAT(written_, ElementsAre(ElementsAre(1), ElementsAre(2, 3)));
}

TEST_F(OutboxTest, WhatIsPostedWhileItIsHeldLeavesTogether) {
  outbox_.Hold();
  for (uint64_t round : {1, 2}) outbox_.Post(Result(round));
  EXPECT_TRUE(written_.empty());
  outbox_.Release();
  outbox_.Hold();
  outbox_.Post(Result(3));
  outbox_.OnWritten();
  EXPECT_FALSE(outbox_.Seal()) << "3 waits";
  outbox_.Release();
  EXPECT_THAT(written_, ElementsAre(ElementsAre(1, 2), ElementsAre(3)));
}

TEST_F(OutboxTest, SealedItWritesWhatWaitsAndTakesNothingMore) {
  outbox_.Post(Result(1));
  outbox_.Post(Result(2));
  EXPECT_FALSE(outbox_.Seal());
  outbox_.Post(Result(3));
  outbox_.OnWritten();
  EXPECT_FALSE(outbox_.Seal()) << "2 is in flight";
  outbox_.OnWritten();
  EXPECT_TRUE(outbox_.Seal());
  EXPECT_THAT(written_, ElementsAre(ElementsAre(1), ElementsAre(2)));
}

TEST_F(OutboxTest, ClosedItDropsWhatWaits) {
  outbox_.Post(Result(1));
  outbox_.Post(Result(2));
  EXPECT_FALSE(outbox_.Close());
  outbox_.OnWritten();
  EXPECT_TRUE(outbox_.Close());
  EXPECT_THAT(written_, ElementsAre(ElementsAre(1)));
}

TEST_F(OutboxTest, MoreThanMayWaitIsDroppedAndClosesIt) {
  outbox_.Post(Result(1, 5000));
  EXPECT_TRUE(outbox_.open()) << "what is in flight does not wait";
  outbox_.Post(Result(2, 600));
  outbox_.Post(Result(3, 600));
  EXPECT_TRUE(outbox_.overflowed());
  EXPECT_FALSE(outbox_.open());
  outbox_.OnWritten();
  EXPECT_THAT(written_, ElementsAre(ElementsAre(1)));
}

TEST_F(OutboxTest, WhatWasWrittenDoesNotCountAnyMore) {
  for (uint64_t round = 1; round < 20; ++round) {
    outbox_.Post(Result(round, 600));
    if (round > 1) outbox_.OnWritten();
  }
  EXPECT_FALSE(outbox_.overflowed());
}

TEST_F(OutboxTest, WhatThereIsToSayBesideItemsLeavesWithThemOrAlone) {
  outbox_.PostEmpty();
  EXPECT_TRUE(written_.empty()) << "the first message will say it";
  outbox_.PostFirst({});
  outbox_.OnWritten();
  outbox_.PostEmpty();
  outbox_.PostEmpty();
  outbox_.Post(Result(1));
  outbox_.OnWritten();
  outbox_.OnWritten();
  EXPECT_THAT(written_, ElementsAre(ElementsAre(), ElementsAre(), ElementsAre(1)));
  outbox_.PostEmpty();
  EXPECT_FALSE(outbox_.Seal()) << "it is being said";
  EXPECT_TRUE(outbox_.OnWritten());
}

// Gives as many answers to an item as its sequence id is long, all at once. For an item without an id it
// gives none, and holds the thread that polls until it is let go.
class ManyAnswers final : public v1::Target::WithRawMethod_Verify<v1::Target::Service> {
 public:
  explicit ManyAnswers(size_t max_waiting_bytes)
      : streams_(
            info_, [this](auto&& item, const auto& results) { Answer(item, results); },
            [] { return ServerLoad{3}; }, max_waiting_bytes) {}

  void Serve(RpcServer& server) {
    streams_.Serve(server, [this](auto* context, auto* stream, auto* queue, auto* tag) {
      RequestVerify(context, stream, queue, queue, tag);
    });
  }

  // Waits until the answers to an item were given to its stream.
  void AwaitAnswered() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return answered_; });
  }
  void AwaitHeld() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return held_; });
  }
  void LetGo() {
    std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  void HoldAnswers() { streams_.Hold(); }
  void ReleaseAnswers() { streams_.Release(); }
  void Close() { streams_.Close(); }
  void EndAll() { streams_.EndAll(); }

 private:
  void Answer(const v1::TargetItem& item, const std::shared_ptr<Results>& results) {
    const size_t answers = item.verify().sequence().sequence_id().size();
    if (answers == 0) return Hold();
    for (uint64_t round = 1; round <= answers; ++round) results->Post(Result(round, kAnswerBytes));
    std::lock_guard lock(mutex_);
    answered_ = true;
    changed_.notify_all();
  }
  void Hold() {
    std::unique_lock lock(mutex_);
    held_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !held_; });
  }

  const v1::ServerInfo info_;
  BatchServer<v1::VerifyRequest, v1::VerifyResponse> streams_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool answered_ = false;
  bool held_ = false;
};

// One stream, of a client that reads when the test says so.
class Client {
 public:
  explicit Client(const std::shared_ptr<grpc::Channel>& channel) : stub_(v1::Target::NewStub(channel)) {}

  // Opens the stream. Returns whether the server's first message has come.
  bool Open(absl::Duration patience = absl::InfiniteDuration()) {
    if (patience < absl::InfiniteDuration())
      context_.set_deadline(absl::ToChronoTime(absl::Now() + patience));
    stream_ = stub_->Verify(&context_);
    return stream_->Read(&first) && first.has_info();
  }
  v1::VerifyResponse first;
  void AskFor(size_t answers) {
    v1::VerifyRequest request;
    request.add_items()->mutable_verify()->mutable_sequence()->set_sequence_id(std::string(answers, 'x'));
    ASSERT_TRUE(stream_->Write(request));
  }
  v1::VerifyResponse Read() {
    v1::VerifyResponse response;
    EXPECT_TRUE(stream_->Read(&response));
    return response;
  }
  // Reads until the end. Returns the number of answers.
  size_t ReadAll() {
    size_t answers = 0;
    for (v1::VerifyResponse response; stream_->Read(&response);) answers += response.results_size();
    return answers;
  }
  absl::Status End() { return FromGrpc(stream_->Finish()); }
  void WritesDone() { stream_->WritesDone(); }
  void Cancel() { context_.TryCancel(); }

 private:
  const std::unique_ptr<v1::Target::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::VerifyRequest, v1::VerifyResponse>> stream_;
};

class StreamTest : public ::testing::Test {
 protected:
  // Keeps gRPC from ending itself with the last server of a test, which can take it ten seconds.
  static void SetUpTestSuite() { grpc_init(); }

  void Serve(size_t max_waiting_bytes = kMaxWaitingBytes, int max_streams = 16) {
    service_ = std::make_unique<ManyAnswers>(max_waiting_bytes);
    auto server =
        RpcServer::Start("127.0.0.1:0", {.max_streams = max_streams}, {service_.get()}, polling_.poller());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    service_->Serve(*server_);
    channel_ =
        grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), ChannelArguments());
  }

  PollingThread polling_;
  std::unique_ptr<ManyAnswers> service_;
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(StreamTest, AnswersThatWaitAreWrittenBeforeAStreamEnds) {
  Serve();
  Client client(channel_);
  ASSERT_TRUE(client.Open());
  client.AskFor(200);
  // These answers are more than a connection holds for a client that does not read.
  service_->AwaitAnswered();
  service_->EndAll();
  EXPECT_EQ(client.ReadAll(), 200u);
  const absl::Status end = client.End();
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(end), "DRAINING");
}

TEST_F(StreamTest, EachMessageSaysTheLoadAndWhetherTheServerIsGoingAway) {
  Serve();
  Client idle(channel_), busy(channel_);
  ASSERT_TRUE(idle.Open());
  ASSERT_TRUE(busy.Open());
  EXPECT_EQ(idle.first.load(), 3u);
  EXPECT_FALSE(idle.first.going_away());
  busy.AskFor(1);
  EXPECT_EQ(busy.Read().load(), 3u);
  service_->Close();
  const v1::VerifyResponse last = idle.Read();
  EXPECT_TRUE(last.going_away());
  EXPECT_EQ(last.results_size(), 0);
  EXPECT_TRUE(busy.Read().going_away());
  busy.AskFor(1);
  const v1::VerifyResponse answer = busy.Read();
  EXPECT_EQ(answer.results_size(), 1) << "it answers what it has";
  EXPECT_TRUE(answer.going_away());
}

TEST_F(StreamTest, AnswersThatWaitAreWrittenToAClientThatHasNothingMoreToSay) {
  Serve();
  Client client(channel_);
  ASSERT_TRUE(client.Open());
  client.AskFor(200);
  client.WritesDone();
  EXPECT_EQ(client.ReadAll(), 200u);
  EXPECT_TRUE(client.End().ok());
}

TEST_F(StreamTest, AReaderThatIsTooSlowLosesItsStreamAndNoOther) {
  Serve(/*max_waiting_bytes=*/50 * kAnswerBytes);
  Client slow(channel_), other(channel_);
  ASSERT_TRUE(slow.Open());
  ASSERT_TRUE(other.Open());
  slow.AskFor(400);
  service_->AwaitAnswered();
  other.AskFor(1);
  other.WritesDone();
  EXPECT_EQ(other.ReadAll(), 1u);
  EXPECT_TRUE(other.End().ok());
  EXPECT_LT(slow.ReadAll(), 400u);
  const absl::Status end = slow.End();
  EXPECT_EQ(end.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(end), "READER_TOO_SLOW");
}

TEST_F(StreamTest, BytesThatAreNoMessageEndTheirStreamWithAnErrorAndNoOther) {
  Serve();
  Client other(channel_);
  ASSERT_TRUE(other.Open());
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto stream = stub.PrepareCall(&context, "/outrider.v1.Target/Verify", &queue);
  stream->StartCall(nullptr);
  ASSERT_TRUE(wait());
  const grpc::Slice garbage("\xff\xff\xff");
  stream->Write(grpc::ByteBuffer(&garbage, 1), nullptr);
  ASSERT_TRUE(wait());
  grpc::ByteBuffer read;
  do {
    stream->Read(&read, nullptr);
  } while (wait());
  grpc::Status status;
  stream->Finish(&status, nullptr);
  ASSERT_TRUE(wait());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(FromGrpc(status)), "MESSAGE_INVALID");
  other.AskFor(2);
  other.WritesDone();
  EXPECT_EQ(other.ReadAll(), 2u);
}

// The thread that polls is in a long step, as an engine thread may be.
TEST_F(StreamTest, WhileTheThreadThatPollsIsBusyOthersAreServed) {
  Serve();
  Client busy(channel_), other(channel_);
  ASSERT_TRUE(busy.Open());
  ASSERT_TRUE(other.Open());
  busy.AskFor(0);
  service_->AwaitHeld();
  other.AskFor(3);
  other.WritesDone();
  EXPECT_EQ(other.ReadAll(), 3u);
  EXPECT_TRUE(other.End().ok());
  Client late(channel_);
  EXPECT_TRUE(late.Open());
  late.WritesDone();
  EXPECT_TRUE(late.End().ok());
  service_->LetGo();
  busy.WritesDone();
  EXPECT_EQ(busy.ReadAll(), 0u);
}

TEST_F(StreamTest, AnAddressThatIsTakenIsNamed) {
  Serve();
  QueuePoller poller;
  for (const bool is_main : {true, false}) {
    ManyAnswers service(kMaxWaitingBytes);
    const auto server =
        RpcServer::Start(is_main ? server_->address() : "127.0.0.1:0",
                         {.health_listen = is_main ? "" : server_->address()}, {&service}, &poller);
    EXPECT_EQ(server.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ReasonOf(server.status()), "ADDRESS_UNAVAILABLE");
  }
}

// The coordinator goes away while an answer is held back.
TEST_F(StreamTest, AStreamWhoseAnswersAreHeldBackStaysUntilTheyAreReleased) {
  Serve();
  service_->HoldAnswers();
  {
    Client client(channel_);
    ASSERT_TRUE(client.Open());
    service_->HoldAnswers();  // of this stream too
    client.AskFor(1);
    service_->AwaitAnswered();
    client.WritesDone();
    client.Cancel();
    EXPECT_EQ(client.ReadAll(), 0u);
    EXPECT_EQ(client.End().code(), absl::StatusCode::kCancelled);
    Client other(channel_);
    ASSERT_TRUE(other.Open()) << "the end of the first has been seen";
    other.WritesDone();
  }
  service_->ReleaseAnswers();
  Client last(channel_);
  ASSERT_TRUE(last.Open());
  last.AskFor(2);
  last.WritesDone();
  EXPECT_EQ(last.ReadAll(), 2u);
}

TEST_F(StreamTest, AServiceThatEndsRefusesNewStreams) {
  Serve();
  service_->Close();
  Client late(channel_);
  EXPECT_FALSE(late.Open());
  EXPECT_EQ(ReasonOf(late.End()), "DRAINING");
}

TEST_F(StreamTest, AConnectionHasNoMoreStreamsThanAllowed) {
  Serve(kMaxWaitingBytes, /*max_streams=*/1);
  Client one(channel_);
  ASSERT_TRUE(one.Open());
  Client two(channel_);
  EXPECT_FALSE(two.Open(absl::Milliseconds(500)));
  EXPECT_EQ(two.End().code(), absl::StatusCode::kDeadlineExceeded);
  one.WritesDone();
  EXPECT_TRUE(one.End().ok());
  Client three(channel_);
  EXPECT_TRUE(three.Open());
  three.WritesDone();
}

TEST(ChannelArguments, KeepIdleConnectionsAliveAndGiveAnAttemptTime) {
  const grpc::ChannelArguments owner = ChannelArguments();
  const grpc_channel_args arguments = owner.c_channel_args();
  std::map<std::string, int> values;
  for (size_t i = 0; i < arguments.num_args; ++i) {
    const grpc_arg& argument = arguments.args[i];
    if (argument.type == GRPC_ARG_INTEGER) values[argument.key] = argument.value.integer;
  }
  EXPECT_EQ(values.at(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA), 0);
  EXPECT_EQ(values.at(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS), 1);
  EXPECT_EQ(values.at(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS), 5000);
  EXPECT_LE(values.at(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS), 500);
}

TEST(RetryDelay, IsThatWhichTheErrorWasGivenLast) {
  const absl::Status busy = BusyError("SOME", "busy", absl::Milliseconds(1500));
  EXPECT_EQ(RetryDelay(busy), absl::Milliseconds(1500));
  EXPECT_EQ(RetryDelay(WithRetryDelay(busy, absl::Milliseconds(20))), absl::Milliseconds(20));
  EXPECT_EQ(ReasonOf(WithRetryDelay(busy, absl::Milliseconds(20))), "SOME");
}

}  // namespace
}  // namespace outrider
