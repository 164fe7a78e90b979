// vLLM's protocol in front of a made-up service that writes as much as is read.
#include "coordinator/vllm/vllm_service.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "common/rpc/error.h"
#include "common/rpc/server.h"
#include "outrider/v1/inference.grpc.pb.h"
#include "tests/unit/vllm_testing.h"
#include "vllm/control.grpc.pb.h"
#include "vllm/inference.grpc.pb.h"

namespace outrider {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr int kMany = 200;  // pieces, more than buffers have room for

// Writes kMany pieces to clients that ask for "many", and to others without end.
class Writer final : public v1::Inference::Service {
 public:
  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    v1::GenerateResponse chunk;
    chunk.set_text(std::string(kPieceBytes, 'a'));
    chunk.add_tokens();
    if (request->text() == "many") {
      for (int i = 0; i < kMany; ++i) writer->Write(chunk);
      return grpc::Status::OK;
    }
    while (writer->Write(chunk)) ++written;
    ended = true;
    return grpc::Status::CANCELLED;
  }

  std::atomic<int> written = 0;     // pieces of answers without end
  std::atomic<bool> ended = false;  // an answer without end was cancelled
};

class VllmServiceTest : public ::testing::Test {
 protected:
  VllmServiceTest() : vllm_(VllmOptions{}) {
    std::vector<grpc::Service*> services = vllm_.services();
    services.push_back(&service_);
    server_ = RpcServer::Start("127.0.0.1:0", {}, services).value();
    vllm_.Open(server_->InProcessChannel());
    channel_ = grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials());
    client_ = vllm::Inference::NewStub(channel_);
  }

  template <class Condition>
  static void Await(Condition condition) {
    while (!condition()) std::this_thread::yield();
  }

  Writer service_;
  VllmService vllm_;
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<vllm::Inference::Stub> client_;
  grpc::ClientContext context_;
};

TEST_F(VllmServiceTest, AnAnswerThatIsTooLargeToBeWholeIsNotHeld) {
  vllm::GenerateResponse response;
  const absl::Status status =
      FromGrpc(client_->Generate(&context_, FromText<vllm::GenerateRequest>("text: 'a'"), &response));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), "ANSWER_TOO_LARGE");
  Await([&] { return service_.ended.load() && vllm_.unfinished() == 0; });
  EXPECT_LT(service_.written, kMany);
}

TEST_F(VllmServiceTest, AStreamThatIsNotReadStandsStill) {
  const auto reader = client_->GenerateStream(&context_, FromText<vllm::GenerateRequest>("text: 'a'"));
  vllm::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.outputs().text().size(), kPieceBytes);
  // A client that asks later and reads gets as much as this one would have.
  grpc::ClientContext context;
  const auto other = client_->GenerateStream(&context, FromText<vllm::GenerateRequest>("text: 'many'"));
  int pieces = 0;
  while (other->Read(&response)) ++pieces;
  EXPECT_EQ(pieces, kMany);
  EXPECT_TRUE(other->Finish().ok());
  EXPECT_LT(service_.written, kMany / 2);
  context_.TryCancel();
  while (reader->Read(&response)) continue;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  Await([&] { return service_.ended.load() && vllm_.unfinished() == 0; });
}

TEST_F(VllmServiceTest, AbortEndsAStreamThatIsNotRead) {
  const auto reader = client_->GenerateStream(
      &context_, FromText<vllm::GenerateRequest>("text: 'a' request_id: 'x' sampling { num_sequences: 1 }"));
  vllm::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  grpc::ClientContext context;
  vllm::AbortResponse nothing;
  vllm::AbortRequest abort;
  abort.add_request_ids("x");
  const auto control = vllm::Control::NewStub(channel_);
  EXPECT_TRUE(control->Abort(&context, abort, &nothing).ok());
  Await([&] { return service_.ended.load(); });
  uint32_t tokens = 1;
  while (reader->Read(&response)) tokens += response.outputs().num_tokens();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(response.outputs().finish_info().finish_reason(), vllm::FinishInfo::ABORTED);
  EXPECT_EQ(response.outputs().finish_info().num_output_tokens(), tokens);
}

}  // namespace
}  // namespace outrider
