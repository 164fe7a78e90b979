// A call of Generate from end to end, against a target of gRPC's that answers as it is told.
#include "coordinator/api/generate_call.h"

#include <gmock/gmock.h>
#include <prometheus/registry.h>

#include <limits>
#include <thread>

#include "common/rpc/error.h"
#include "coordinator/api/inference_service.h"
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
    DrafterParts drafters;
    drafters.metrics = &metrics_;
    RequestDefaults defaults;
    defaults.drafter = v1::DRAFTER_KIND_NONE;
    service_.emplace(ServiceParts{.executor = context_.get_executor(),
                                  .parsers = context_.get_executor(),
                                  .tokenizer = &TestTokenizer(),
                                  .targets = pool_.get(),
                                  .mixed_numerics = false,
                                  .drafters = drafters,
                                  .defaults = defaults,
                                  .admission = &admission_,
                                  .checks_tokens = false,
                                  .share_prefix_cache = false,
                                  .stream_interval = std::chrono::hours(1),
                                  .policy = &policy_,
                                  .observer = &observer_,
                                  .metrics = &metrics_});
    auto front = RpcServer::Start("127.0.0.1:0", {}, &*service_);
    ASSERT_TRUE(front.ok()) << front.status();
    front_ = *std::move(front);
  }

  absl::Status Generate(const std::string& text, int* tokens = nullptr) {
    std::optional<absl::Status> status;
    std::thread client([&] {
      const auto stub =
          v1::Inference::NewStub(grpc::CreateChannel(front_->address(), grpc::InsecureChannelCredentials()));
      grpc::ClientContext context;
      v1::GenerateRequest request;
      request.set_text(text);
      request.mutable_stop()->set_max_tokens(3);
      const auto stream = stub->Generate(&context, request);
      v1::GenerateResponse chunk;
      while (stream->Read(&chunk)) {
        if (tokens != nullptr) *tokens += chunk.tokens_size();
      }
      absl::Status end = FromGrpc(stream->Finish());
      asio::post(context_.get_executor(), [&status, end = std::move(end)] { status = end; });
    });
    RunUntil([&status] { return status.has_value(); });
    client.join();
    return *status;
  }

  prometheus::Registry registry_;
  Metrics metrics_{registry_, 1};
  Admission admission_{context_.get_executor(), {.max_samples = 1, .max_waiting = 0}};
  DraftLengthPolicy policy_;
  RoundObserver observer_{&metrics_, &policy_};
  std::optional<InferenceService> service_;
  std::unique_ptr<RpcServer> front_;
};

TEST_F(GenerateCallTest, AnExceptionEndsItsRequestAndFreesItsPlace) {
  Serve();
  EXPECT_EQ(Generate("").code(), absl::StatusCode::kInvalidArgument)
      << "protobuf has all it needs for errors";
  const std::string text(3500, 'a');
  largest_allocation = 3000;
  const absl::Status status = Generate(text);
  largest_allocation = std::numeric_limits<size_t>::max();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(admission_.running(), 0u);
  EXPECT_TRUE(Generate("short").ok()) << "there is one place, and it is free";
}

// The second one waits to leave with others when the third fails.
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
