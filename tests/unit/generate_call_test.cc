// A call of Generate from end to end, against a fake target that answers as a test tells it.
#include "coordinator/api/inference_service.h"

#include <gmock/gmock.h>
#include <prometheus/registry.h>

#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/rpc/error.h"
#include "outrider/v1/inference.grpc.pb.h"
#include "tests/unit/limited_memory.h"
#include "tests/unit/pool_testing.h"
#include "tests/unit/test_tokenizer.h"

namespace outrider {
namespace {

class GenerateCallTest : public PoolFixture<FakeTarget> {
 protected:
  void SetUp() override {
    server_.info.set_vocab_size(static_cast<uint32_t>(TestTokenizer().vocab_size()));
    server_.info.set_kv_blocks(1024);
    server_.info.set_block_size(16);
    server_.Do([](const v1::TargetItem&, v1::VerifyResult* result) {
      result->mutable_verdict()->set_token(7);
      result->mutable_verdict()->set_kind(v1::TOKEN_KIND_PLAIN);
      return FakeTarget::Action::kAnswer;
    });
    Connect();
  }
  void TearDown() override {
    front_ = nullptr;
    PoolFixture::TearDown();
  }

  void Serve() {
    RequestDefaults defaults;
    defaults.drafter = v1::DRAFTER_KIND_NONE;
    defaults.max_samples = 4;
    service_.emplace(ServiceParts{.decode = {.executor = context_.get_executor(),
                                             .tokenizer = &TestTokenizer(),
                                             .targets = pool_.get(),
                                             .policy = &policy_,
                                             .metrics = &metrics_},
                                  .parsers = &parsers_,
                                  .mixed_numerics = false,
                                  .defaults = defaults,
                                  .admission = &admission_,
                                  .checks_tokens = false,
                                  .cache_key = "key",
                                  .stream_interval = stream_interval_,
                                  .read_patience = read_patience_});
    auto front = RpcServer::Start("127.0.0.1:0", {}, {&*service_});
    ASSERT_TRUE(front.ok()) << front.status();
    front_ = *std::move(front);
  }

  static v1::GenerateRequest RequestFor(const std::string& text) {
    v1::GenerateRequest request;
    request.set_text(text);
    request.mutable_stop()->set_max_tokens(3);
    return request;
  }

  absl::Status Generate(const std::string& text, int* tokens = nullptr) {
    return Generate(RequestFor(text), [tokens](const v1::GenerateResponse& chunk) {
      if (tokens != nullptr) *tokens += chunk.tokens_size();
      return true;
    });
  }

  // Reads chunks until `read` returns false, then stops reading until the call has ended in the service.
  absl::Status Generate(const v1::GenerateRequest& request,
                        const std::function<bool(const v1::GenerateResponse&)>& read) {
    std::optional<absl::Status> status;
    std::thread client([&] {
      grpc::ChannelArguments small;  // with small buffers, which do not grow
      small.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
      const auto stub = v1::Inference::NewStub(
          grpc::CreateCustomChannel(front_->address(), grpc::InsecureChannelCredentials(), small));
      grpc::ClientContext context;
      if (patience_.tv_sec > 0) context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), patience_));
      const auto stream = stub->Generate(&context, request);
      v1::GenerateResponse chunk;
      bool reads = true;
      while (reads && stream->Read(&chunk)) reads = read(chunk);
      while (!reads && service_->unfinished() > 0) absl::SleepFor(absl::Milliseconds(1));
      while (stream->Read(&chunk)) continue;
      absl::Status end = FromGrpc(stream->Finish());
      asio::post(context_.get_executor(), [&status, end = std::move(end)] { status = end; });
    });
    RunUntil([&status] { return status.has_value(); });
    client.join();
    return *status;
  }

  prometheus::Registry registry_;
  Metrics metrics_{registry_, 1};
  Admission admission_{context_.get_executor(), {.max_samples = 4, .max_waiting = 0}};
  ParserThreads parsers_{context_.get_executor(), 1};
  Clock::duration read_patience_ = kLong;
  gpr_timespec patience_{};  // of the client; none if it has no seconds
  DraftChoice policy_;
  Clock::duration stream_interval_ = std::chrono::hours(1);
  std::optional<InferenceService> service_;
  std::unique_ptr<RpcServer> front_;
};

TEST_F(GenerateCallTest, AnExceptionEndsItsRequestAndFreesItsPlace) {
  Serve();
  EXPECT_EQ(Generate("").code(), absl::StatusCode::kInvalidArgument)
      << "protobuf has all it needs for errors";
  const v1::GenerateRequest request = RequestFor(std::string(3500, 'a'));
  largest_allocation = 3000;
  const absl::Status status = Generate(request, [](const v1::GenerateResponse&) { return true; });
  largest_allocation = std::numeric_limits<size_t>::max();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(admission_.running(), 0u);
  EXPECT_TRUE(Generate("short").ok()) << "its place is free";
}

TEST_F(GenerateCallTest, ADeadlineBeyondTheRangeOfAClockIsNone) {
  Serve();
  constexpr int64_t kYear = int64_t{365} * 24 * 3600;
  for (const int64_t years : {1, 99, 101, 293, 1000}) {
    patience_ = gpr_time_from_seconds(years * kYear, GPR_TIMESPAN);
    EXPECT_TRUE(Generate("a").ok()) << years;
  }
}

TEST_F(GenerateCallTest, ALongRequestWaitsUntilItIsItsClientsTurnToBeParsed) {
  Serve();
  absl::Notification waits;
  const std::function<absl::StatusOr<int>()> parse = [&waits] {
    waits.WaitForNotification();
    return 0;
  };
  std::unique_ptr<Admission::Ticket> ticket;
  auto other = asio::co_spawn(context_.get_executor(),
                              parsers_.Run("another client", Clock::time_point::max(), ticket, parse),
                              asio::use_future);
  const auto await_the_second = [&]() -> asio::awaitable<void> {
    Event tick(context_.get_executor());
    while (parsers_.turns().waiting() == 0) co_await tick.Wait(Clock::now() + std::chrono::milliseconds(1));
    waits.Notify();
  };
  asio::co_spawn(context_.get_executor(), await_the_second(), asio::detached);
  Generate(std::string(5000, 'a')).IgnoreError();
  EXPECT_TRUE(waits.HasBeenNotified());
  EXPECT_TRUE(other.get().ok());
  EXPECT_EQ(parsers_.turns().running(), 0u);
}

TEST_F(GenerateCallTest, AllSamplesAreAnsweredThoughTheFirstEndsInItsFirstRound) {
  Serve();
  v1::GenerateRequest request = RequestFor("a");
  request.set_n(4);
  for (const uint32_t max_tokens : {1u, 20u}) {
    request.mutable_stop()->set_max_tokens(max_tokens);
    request.mutable_stop()->clear_token_ids();
    if (max_tokens > 1) request.mutable_stop()->add_token_ids(7);
    std::vector<uint32_t> finished;
    EXPECT_TRUE(Generate(request, [&](const v1::GenerateResponse& chunk) {
                  if (chunk.has_finish()) finished.push_back(chunk.sample());
                  return true;
                }).ok());
    EXPECT_THAT(finished, testing::UnorderedElementsAre(0, 1, 2, 3));
  }
}

TEST_F(GenerateCallTest, AClientThatDoesNotReadLosesItsPlace) {
  read_patience_ = std::chrono::milliseconds(200);
  stream_interval_ = {};
  Serve();
  v1::GenerateRequest request = RequestFor("a");
  request.mutable_stop()->set_max_tokens(1900);
  request.mutable_stop()->set_ignore_eos(true);
  request.mutable_logprobs()->set_top(20);
  server_.Do([](const v1::TargetItem&, v1::VerifyResult* result) {
    v1::Verdict* const verdict = result->mutable_verdict();
    verdict->set_token(7);
    verdict->set_kind(v1::TOKEN_KIND_PLAIN);
    v1::PositionLogprobs* const position = verdict->add_logprobs();
    position->mutable_token()->set_id(7);
    for (uint32_t id = 0; id < 20; ++id) position->add_top()->set_id(id);
    return FakeTarget::Action::kAnswer;
  });
  const absl::Status status = Generate(request, [](const v1::GenerateResponse&) { return false; });
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(admission_.running(), 0u);
}

// The second token waits to be sent with others when the third fails.
TEST_F(GenerateCallTest, TokensThatWaitLeaveBeforeAnError) {
  Serve();
  int rounds = 0;
  server_.Do([&rounds](const v1::TargetItem&, v1::VerifyResult* result) {
    result->mutable_verdict()->set_token(++rounds < 3 ? 7 : 1 << 30);
    result->mutable_verdict()->set_kind(v1::TOKEN_KIND_PLAIN);
    return FakeTarget::Action::kAnswer;
  });
  int tokens = 0;
  EXPECT_EQ(ReasonOf(Generate("a", &tokens)), "VERDICT_INVALID");
  EXPECT_EQ(tokens, 2);
}

}  // namespace
}  // namespace outrider
