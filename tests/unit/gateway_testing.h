// The HTTP gateway in front of a fake service, for tests.
#pragma once

#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/error.h"
#include "common/rpc/server.h"
#include "coordinator/openai/gateway.h"
#include "outrider/v1/inference.grpc.pb.h"
#include "tests/unit/http_client.h"

namespace outrider {

using Json = nlohmann::json;

// A fake service that answers "a" to every prompt, except to those that name another behaviour.
class MadeUp final : public v1::Inference::Service {
 public:
  static constexpr int kManyChunks = 800;
  static constexpr size_t kChunkBytes = 64 << 10;
  static constexpr int kHoard = 960;  // chunks, of which a whole answer may have 1023

  grpc::Status Describe(grpc::ServerContext* context, const v1::DescribeRequest*,
                        v1::DescribeResponse* response) override {
    if (hangs) return Hang(*context);
    if (has_target) response->mutable_target()->set_model("made-up");
    return grpc::Status::OK;
  }
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    ++calls;
    if (request->text() == "busy") return ToGrpc(BusyError("QUEUE_FULL", "full", absl::Seconds(3)));
    if (request->sampling().grammar().regex() == "(") {
      return ToGrpc(FieldError("sampling.grammar", "a regular expression", "("));
    }
    if (request->text() == "hang") return Hang(*context);
    if (request->text() == "much") return WriteMuch(*writer);
    if (request->text() == "hoard") {
      v1::GenerateResponse chunk;
      chunk.set_text(std::string(kChunkBytes, 'a'));
      for (int i = 0; i < kHoard && writer->Write(chunk); ++i) continue;
      ++hoards;
      return Hang(*context);
    }
    v1::GenerateResponse chunk;
    chunk.set_text("a");
    writer->Write(chunk);
    if (request->text() == "half")
      return ToGrpc(MakeError(absl::StatusCode::kUnavailable, "DRAINING", "bye"));
    if (request->text() == "endless") return Hang(*context);
    chunk.mutable_finish()->set_reason(v1::FINISH_REASON_STOP);
    writer->Write(chunk);
    return grpc::Status::OK;
  }

  std::atomic<bool> has_target = true;
  std::atomic<bool> hangs = false;
  std::atomic<int> calls = 0;
  std::atomic<int> cancelled = 0;
  std::atomic<int> written = 0;  // chunks of the first call that asked for much
  std::atomic<int> asked_for_much = 0;
  std::atomic<int> hoards = 0;     // that were written, or cut short
  std::atomic<int> cut_short = 0;  // calls that asked for much and were not read to the end

 private:
  grpc::Status Hang(grpc::ServerContext& context) {
    while (!context.IsCancelled()) std::this_thread::yield();
    ++cancelled;
    return grpc::Status::CANCELLED;
  }
  grpc::Status WriteMuch(grpc::ServerWriter<v1::GenerateResponse>& writer) {
    const bool first = asked_for_much++ == 0;
    v1::GenerateResponse chunk;
    chunk.set_text(std::string(kChunkBytes, 'a'));
    for (int i = 0; i < kManyChunks; ++i) {
      if (!writer.Write(chunk)) {
        ++cut_short;
        return grpc::Status::CANCELLED;
      }
      written += first;
    }
    chunk.mutable_finish()->set_reason(v1::FINISH_REASON_STOP);
    writer.Write(chunk);
    return grpc::Status::OK;
  }
};

// Waits for a condition that must come true. If it never does, the test ends at its time limit.
template <class Condition>
void Await(Condition condition) {
  while (!condition()) std::this_thread::yield();
}

class GatewayTest : public ::testing::Test {
 protected:
  // The header with the token, which every request is sent with.
  static constexpr char kToken[] = "Authorization: Bearer secret\r\n";

  GatewayTest() : GatewayTest(GatewayOptions{}) {}
  explicit GatewayTest(GatewayOptions options) {
    server_ = RpcServer::Start("127.0.0.1:0", {}, {&service_}).value();
    options.listen = "127.0.0.1:0";
    options.ready = [this] { return ready_.load(); };
    options.authorize = [](absl::string_view authorization) {
      if (authorization == "Bearer secret") return absl::OkStatus();
      return MakeError(absl::StatusCode::kUnauthenticated, "UNAUTHENTICATED", "a bearer token is needed");
    };
    options.on_refused = [this](int status) { last_refused_ = status; };
    gateway_ = Gateway::Start(std::move(options), server_->InProcessChannel()).value();
    client_ = Connect();
  }

  std::unique_ptr<HttpTestClient> Connect(int receive_buffer = 0) {
    return std::make_unique<HttpTestClient>(gateway_->address(), receive_buffer);
  }
  HttpAnswer Get(const std::string& path) { return client_->Ask("GET", path, kToken); }
  HttpAnswer Post(const Json& body) { return client_->Ask("POST", "/v1/completions", kToken, body.dump()); }
  // The text of a request for a completion.
  static std::string PostText(const Json& body, const std::string& headers = kToken) {
    return absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: test\r\n", headers,
                        "Content-Length: ", body.dump().size(), "\r\n\r\n", body.dump());
  }

  MadeUp service_;
  std::atomic<bool> ready_ = true;
  std::atomic<int> last_refused_ = 0;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<Gateway> gateway_;
  std::unique_ptr<HttpTestClient> client_;
};

}  // namespace outrider
