// The HTTP server in front of a fake service.
#include <gmock/gmock.h>
#include <httplib.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/rpc/error.h"
#include "common/rpc/server.h"
#include "coordinator/gateway/gateway.h"
#include "outrider/v1/inference.grpc.pb.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

// Answers "a" to every prompt, except one for which it is busy.
class MadeUp final : public v1::Inference::Service {
 public:
  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*,
                        v1::DescribeResponse* response) override {
    if (has_target) response->mutable_target()->set_model("made-up");
    return grpc::Status::OK;
  }
  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    if (request->text() == "busy") return ToGrpc(BusyError("QUEUE_FULL", "full", absl::Seconds(3)));
    v1::GenerateResponse chunk;
    chunk.set_text("a");
    writer->Write(chunk);
    if (request->text() == "half")
      return ToGrpc(MakeError(absl::StatusCode::kUnavailable, "DRAINING", "bye"));
    chunk.mutable_finish()->set_reason(v1::FINISH_REASON_STOP);
    writer->Write(chunk);
    return grpc::Status::OK;
  }

  std::atomic<bool> has_target = true;
};

class GatewayTest : public ::testing::Test {
 protected:
  explicit GatewayTest(std::vector<std::string> names = {}) {
    server_ = RpcServer::Start({.listen = "127.0.0.1:0", .health_listen = ""}, &service_).value();
    gateway_ = Gateway::Start({.listen = "127.0.0.1:0",
                               .max_requests = 4,
                               .served_model_names = std::move(names),
                               .ready = [this] { return ready_; },
                               .authorize =
                                   [](absl::string_view authorization) {
                                     if (authorization == "Bearer secret") return absl::OkStatus();
                                     return MakeError(absl::StatusCode::kUnauthenticated, "UNAUTHENTICATED",
                                                      "a bearer token is needed");
                                   }},
                              server_->InProcessChannel())
                   .value();
    client_ = std::make_unique<httplib::Client>("http://" + gateway_->address());
    client_->set_default_headers({{"Authorization", "Bearer secret"}});
  }

  httplib::Result Post(const Json& body) {
    return client_->Post("/v1/completions", body.dump(), "application/json");
  }

  MadeUp service_;
  bool ready_ = true;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<Gateway> gateway_;
  std::unique_ptr<httplib::Client> client_;
};

TEST_F(GatewayTest, AnswersByTheService) {
  const auto response = Post({{"prompt", "Once"}, {"model", "made-up"}});
  ASSERT_EQ(response->status, 200);
  EXPECT_EQ(Json::parse(response->body)["choices"][0]["text"], "aa");
}

TEST_F(GatewayTest, WithoutTheTokenNothingButHealthIsOpen) {
  httplib::Client stranger("http://" + gateway_->address());
  for (const char* path : {"/v1/models", "/v1/models/made-up"}) EXPECT_EQ(stranger.Get(path)->status, 401);
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    const auto response = stranger.Post(path, R"({"prompt": "Once"})", "application/json");
    EXPECT_EQ(response->status, 401);
    EXPECT_EQ(Json::parse(response->body)["error"]["code"], "invalid_api_key");
    EXPECT_EQ(response->get_header_value("WWW-Authenticate"), "Bearer");
  }
  EXPECT_EQ(stranger.Get("/health")->status, 200);
  EXPECT_EQ(client_->Get("/v1/models/made-up")->status, 200);
}

class NamedGatewayTest : public GatewayTest {
 protected:
  NamedGatewayTest() : GatewayTest({"demo", "org/demo-1"}) {}

  std::vector<std::string> Listed() {
    std::vector<std::string> names;
    const Json list = Json::parse(client_->Get("/v1/models")->body);
    for (const Json& model : list["data"]) names.push_back(model["id"]);
    return names;
  }
};

TEST_F(NamedGatewayTest, EveryNameIsListedAndTakenAndTheFirstIsInTheAnswers) {
  EXPECT_THAT(Listed(), ::testing::ElementsAre("demo", "org/demo-1"));
  for (const char* name : {"demo", "org/demo-1"}) {
    EXPECT_EQ(Json::parse(client_->Get(std::string("/v1/models/") + name)->body)["id"], name);
    const auto response = Post({{"prompt", "Once"}, {"model", name}});
    ASSERT_EQ(response->status, 200);
    EXPECT_EQ(Json::parse(response->body)["model"], "demo");
  }
  EXPECT_EQ(Json::parse(Post({{"prompt", "Once"}})->body)["model"], "demo");
  EXPECT_THAT(Post({{"prompt", "Once"}, {"stream", true}})->body, ::testing::HasSubstr(R"("model":"demo")"));
}

TEST_F(NamedGatewayTest, NoOtherNameIsTaken) {
  EXPECT_EQ(client_->Get("/v1/models/made-up")->status, 404);
  const auto response = Post({{"prompt", "Once"}, {"model", "made-up"}});
  EXPECT_EQ(response->status, 404);
  EXPECT_THAT(response->body, ::testing::HasSubstr("'demo' is"));
}

TEST_F(NamedGatewayTest, NamesAreKnownBeforeTheTargetIsAndNoModelIsListedWithoutIt) {
  service_.has_target = false;
  EXPECT_THAT(Listed(), ::testing::IsEmpty());
  EXPECT_EQ(Post({{"prompt", "Once"}, {"model", "made-up"}})->status, 404);
  EXPECT_EQ(client_->Get("/v1/models/demo")->status, 503);
}

TEST_F(GatewayTest, HealthFollowsTheService) {
  ready_ = false;
  EXPECT_EQ(client_->Get("/health")->status, 503);
}

TEST_F(GatewayTest, ARefusalIsAStatusBeforeTheAnswerAndAnEventWithinIt) {
  for (bool stream : {false, true}) {
    const auto busy = Post({{"prompt", "busy"}, {"stream", stream}});
    EXPECT_EQ(busy->status, 429);
    EXPECT_EQ(busy->get_header_value("Retry-After"), "3");
  }
  EXPECT_EQ(Post({{"prompt", "half"}})->status, 503);
  const auto cut_off = Post({{"prompt", "half"}, {"stream", true}});
  EXPECT_EQ(cut_off->status, 200);
  EXPECT_THAT(cut_off->body, ::testing::HasSubstr(R"("code":"draining")"));
  EXPECT_THAT(cut_off->body, ::testing::EndsWith("data: [DONE]\n\n"));
}

TEST_F(GatewayTest, OneOfSeveralPromptsThatIsRefusedRefusesAll) {
  EXPECT_EQ(Post({{"prompt", {"Once", "busy", "Twice"}}})->status, 429);
}

}  // namespace
}  // namespace outrider
