// The HTTP gateway's translation: the answers that clients of OpenAI's API get from a fake service.
#include <string>
#include <vector>

#include "tests/unit/gateway_testing.h"

namespace outrider {
namespace {

TEST_F(GatewayTest, AnswersByTheService) {
  const auto response = Post({{"prompt", "Once"}, {"model", "made-up"}});
  ASSERT_EQ(response.status, 200);
  EXPECT_EQ(Json::parse(response.body)["choices"][0]["text"], "aa");
}

TEST_F(GatewayTest, WithoutTheTokenNothingButHealthIsOpen) {
  for (const char* path : {"/v1/models", "/v1/models/made-up"}) {
    EXPECT_EQ(Connect()->Ask("GET", path).status, 401);
  }
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    const auto response = Connect()->Ask("POST", path, "", R"({"prompt": "Once"})");
    EXPECT_EQ(response.status, 401);
    EXPECT_EQ(Json::parse(response.body)["error"]["code"], "invalid_api_key");
    EXPECT_EQ(response.headers.at("WWW-Authenticate"), "Bearer");
  }
  EXPECT_EQ(Connect()->Ask("GET", "/health").status, 200);
  EXPECT_EQ(Get("/v1/models/made-up").status, 200);
}

TEST_F(GatewayTest, AnAnswerThatWouldTakeTooMuchMemoryIsRefusedUnlessItIsStreamed) {
  const auto response = Post({{"prompt", {"much", "much"}}});
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(Json::parse(response.body)["error"]["code"], "answer_too_large");
  EXPECT_EQ(Post({{"prompt", "much"}}).status, 200) << "50 MiB";
  EXPECT_EQ(Connect()->Ask("GET", "/health").status, 200);
}

class LocalGatewayTest : public GatewayTest {
 protected:
  LocalGatewayTest() : GatewayTest({.local = true}) {}
};

TEST_F(LocalGatewayTest, PagesOfOtherHostsDoNotReachIt) {
  const auto status = [this](const std::string& headers) {
    const auto client = Connect();
    client->Send(absl::StrCat("GET /v1/models HTTP/1.1\r\n", kToken, headers, "\r\n"));
    return client->Read().status;
  };
  for (const char* own : {"Host: localhost:8070\r\n", "Host: 127.0.0.1\r\n", "Host: [::1]:8070\r\n",
                          "Host: coordinator\r\n", "Host: a.localhost\r\n",
                          "Host: a\r\nOrigin: http://localhost:3000\r\n", "Host: a\r\nOrigin: null\r\n"}) {
    EXPECT_EQ(status(own), 200) << own;
  }
  for (const char* foreign :
       {"Host: evil.example\r\n", "Host: evil.example:8070\r\n", "Host: 127.0.0.1.evil.example.\r\n",
        "Host: localhost\r\nOrigin: https://evil.example\r\n"}) {
    EXPECT_EQ(status(foreign), 403) << foreign;
  }
  const auto client = Connect();
  client->Send("GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client->Read().status, 403);
}

class SharedGatewayTest : public GatewayTest {
 protected:
  SharedGatewayTest() : GatewayTest({.local = true, .allowed_origins = {"https://page.example"}}) {}

  HttpAnswer From(const std::string& origin, const std::string& method = "GET",
                  const std::string& more = "") {
    return Connect()->Ask(method, "/v1/models", absl::StrCat(kToken, "Origin: ", origin, "\r\n", more));
  }
};

TEST_F(SharedGatewayTest, PagesThatAreAllowedMaySeeAnswers) {
  const HttpAnswer answer = From("https://page.example");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("Access-Control-Allow-Origin"), "https://page.example");
  EXPECT_EQ(answer.headers.at("Vary"), "Origin");
  const HttpAnswer asked = From("https://page.example", "OPTIONS",
                                "Access-Control-Request-Headers: content-type,authorization\r\n");
  EXPECT_EQ(asked.status, 204);
  EXPECT_EQ(asked.headers.at("Access-Control-Allow-Origin"), "https://page.example");
  EXPECT_EQ(asked.headers.at("Access-Control-Allow-Headers"), "content-type,authorization");
  EXPECT_THAT(asked.headers.at("Access-Control-Allow-Methods"), ::testing::HasSubstr("GET"));
}

TEST_F(SharedGatewayTest, OthersMayNot) {
  EXPECT_EQ(From("https://evil.example").status, 403);
  EXPECT_FALSE(From("http://localhost:3000").headers.contains("Access-Control-Allow-Origin"));
}

class NamedGatewayTest : public GatewayTest {
 protected:
  NamedGatewayTest() : GatewayTest({.served_model_names = {"demo", "org/demo-1"}}) {}

  std::vector<std::string> Listed() {
    std::vector<std::string> names;
    const Json list = Json::parse(Get("/v1/models").body);
    for (const Json& model : list["data"]) names.push_back(model["id"]);
    return names;
  }
};

TEST_F(NamedGatewayTest, EveryNameIsListedAndTakenAndTheFirstIsInTheAnswers) {
  EXPECT_THAT(Listed(), ::testing::ElementsAre("demo", "org/demo-1"));
  for (const char* name : {"demo", "org/demo-1"}) {
    EXPECT_EQ(Json::parse(Get(std::string("/v1/models/") + name).body)["id"], name);
    const auto response = Post({{"prompt", "Once"}, {"model", name}});
    ASSERT_EQ(response.status, 200);
    EXPECT_EQ(Json::parse(response.body)["model"], "demo");
  }
  EXPECT_EQ(Json::parse(Post({{"prompt", "Once"}}).body)["model"], "demo");
  EXPECT_THAT(Post({{"prompt", "Once"}, {"stream", true}}).body, ::testing::HasSubstr(R"("model":"demo")"));
}

TEST_F(NamedGatewayTest, NoOtherNameIsTaken) {
  EXPECT_EQ(Get("/v1/models/made-up").status, 404);
  const auto response = Post({{"prompt", "Once"}, {"model", "made-up"}});
  EXPECT_EQ(response.status, 404);
  EXPECT_THAT(response.body, ::testing::HasSubstr("'demo' is"));
}

TEST_F(NamedGatewayTest, NamesAreKnownBeforeTheTargetIsAndNoModelIsListedWithoutIt) {
  service_.has_target = false;
  EXPECT_THAT(Listed(), ::testing::IsEmpty());
  EXPECT_EQ(Post({{"prompt", "Once"}, {"model", "made-up"}}).status, 404);
  EXPECT_EQ(Get("/v1/models/demo").status, 503);
}

TEST_F(GatewayTest, HealthFollowsTheService) {
  ready_ = false;
  EXPECT_EQ(Get("/health").status, 503);
}

TEST_F(GatewayTest, AServiceThatDoesNotAnswerIsNotHealthy) {
  service_.hangs = true;
  EXPECT_EQ(Get("/health").status, 503);
  service_.hangs = false;
  EXPECT_EQ(Get("/health").status, 200);
}

TEST_F(GatewayTest, ARefusalIsAStatusBeforeTheAnswerAndAnEventWithinIt) {
  for (bool stream : {false, true}) {
    const auto busy = Post({{"prompt", "busy"}, {"stream", stream}});
    EXPECT_EQ(busy.status, 429);
    EXPECT_EQ(busy.headers.at("Retry-After"), "3");
  }
  EXPECT_EQ(Post({{"prompt", "half"}}).status, 503);
  const auto cut_off = Post({{"prompt", "half"}, {"stream", true}});
  EXPECT_EQ(cut_off.status, 200);
  EXPECT_THAT(cut_off.body, ::testing::HasSubstr(R"("code":"draining")"));
  EXPECT_THAT(cut_off.body, ::testing::EndsWith("data: [DONE]\n\n"));
}

TEST_F(GatewayTest, AGrammarIsRefusedByTheNameThatTheClientUsed) {
  for (bool stream : {false, true}) {
    const auto refused =
        Post({{"prompt", "Once"}, {"stream", stream}, {"structured_outputs", {{"regex", "("}}}});
    EXPECT_EQ(refused.status, 400);
    EXPECT_THAT(refused.body, ::testing::HasSubstr(R"("param":"structured_outputs.regex")"));
    EXPECT_THAT(refused.body, ::testing::HasSubstr(R"("message":"structured_outputs.regex: ()"));
  }
}

TEST_F(GatewayTest, OneOfSeveralPromptsThatIsRefusedRefusesAll) {
  EXPECT_EQ(Post({{"prompt", {"Once", "busy", "Twice"}}}).status, 429);
}

}  // namespace
}  // namespace outrider
