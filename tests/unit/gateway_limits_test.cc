// The HTTP gateway with clients that are slow, large, many, gone, or wrong.
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/gateway_testing.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string CodeOf(const HttpAnswer& answer) { return Json::parse(answer.body)["error"]["code"]; }

// --- deadlines, each of which only the client that the test stalls can miss
// ------------------------------------

class ShortHeadTest : public GatewayTest {
 protected:
  ShortHeadTest() : GatewayTest({.limits = {.head = milliseconds(50)}}) {}
};

TEST_F(ShortHeadTest, AHeadThatTakesTooLongEndsTheConnection) {
  const auto slow = Connect();
  ASSERT_TRUE(slow->Send("GET /health HTTP/1.1\r\nHost: "));
  const HttpAnswer answer = slow->Read();
  EXPECT_EQ(answer.status, 408);
  EXPECT_EQ(CodeOf(answer), "invalid_http");
  EXPECT_TRUE(slow->IsClosed());
  EXPECT_EQ(last_refused_, 408);
}

TEST_F(ShortHeadTest, AConnectionWithoutARequestIsClosed) { EXPECT_TRUE(Connect()->IsClosed()); }

class ShortBodyTest : public GatewayTest {
 protected:
  ShortBodyTest() : GatewayTest({.limits = {.body = milliseconds(50)}}) {}
};

TEST_F(ShortBodyTest, ABodyThatTakesTooLongEndsTheConnection) {
  client_->Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: test\r\n", kToken,
                             "Content-Length: 100\r\n\r\n{"));
  EXPECT_EQ(client_->Read().status, 408);
  EXPECT_TRUE(client_->IsClosed());
}

class ShortIdleTest : public GatewayTest {
 protected:
  ShortIdleTest() : GatewayTest({.limits = {.idle = milliseconds(50)}}) {}
};

TEST_F(ShortIdleTest, AConnectionThatIsNotUsedAgainIsClosed) {
  EXPECT_EQ(Get("/health").status, 200);
  EXPECT_TRUE(client_->IsClosed());
}

class ShortWriteTest : public GatewayTest {
 protected:
  ShortWriteTest() : GatewayTest({.limits = {.write = milliseconds(50)}}) {}
};

TEST_F(ShortWriteTest, AClientThatDoesNotReadForTooLongIsGivenUp) {
  const auto slow = Connect(4096);
  slow->Send(PostText({{"prompt", "much"}, {"stream", true}}));
  Await([this] { return service_.cut_short == 1; });
}

// --- sizes
// ----------------------------------------------------------------------------------------------------

class SmallTest : public GatewayTest {
 protected:
  SmallTest()
      : GatewayTest({.limits = {.max_head_bytes = 2000, .max_url_bytes = 500, .max_body_bytes = 1000}}) {}
};

TEST_F(SmallTest, HeadersAndUrlsHaveALargestSize) {
  EXPECT_EQ(client_->Ask("GET", "/health", absl::StrCat("X: ", std::string(2000, 'x'), "\r\n")).status, 431);
  EXPECT_TRUE(client_->IsClosed());
  EXPECT_EQ(Connect()->Ask("GET", absl::StrCat("/", std::string(500, 'x'))).status, 414);
  // A head is refused even if its end never comes.
  const auto endless = Connect();
  endless->Send(absl::StrCat("GET /health HTTP/1.1\r\nHost: test\r\nX: ", std::string(5000, 'x')));
  EXPECT_EQ(endless->Read().status, 431);
}

TEST_F(SmallTest, ABodyIsRefusedByItsLengthBeforeItIsSent) {
  client_->Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: test\r\n", kToken,
                             "Content-Length: 1001\r\n\r\n"));
  const HttpAnswer answer = client_->Read();
  EXPECT_EQ(answer.status, 413);
  EXPECT_THAT(answer.body, HasSubstr("1000 bytes"));
  EXPECT_TRUE(client_->IsClosed());
}

TEST_F(SmallTest, ABodyInChunksIsRefusedWhereItExceedsTheLargestSize) {
  client_->Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: test\r\n", kToken,
                             "Transfer-Encoding: chunked\r\n\r\n"));
  const std::string chunk = absl::StrCat("190\r\n", std::string(400, ' '), "\r\n");
  client_->Send(absl::StrCat(chunk, chunk, chunk));
  EXPECT_EQ(client_->Read().status, 413);
}

TEST_F(SmallTest, TheHeadOfAChunkHasALargestSizeToo) {
  client_->Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: test\r\n", kToken,
                             "Transfer-Encoding: chunked\r\n\r\n"));
  client_->Send(absl::StrCat("1;", std::string(5000, 'x')));
  EXPECT_GE(client_->Read().status, 400);
}

TEST_F(GatewayTest, ABodyMayComeInChunks) {
  client_->Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: test\r\n", kToken,
                             "Transfer-Encoding: chunked\r\n\r\n",
                             "e\r\n{\"prompt\": \"On\r\n4\r\nce\"}\r\n0\r\n\r\n"));
  EXPECT_EQ(client_->Read().status, 200);
}

// Four answers of 60 MiB are held when the fifth would exceed the limit for all of them.
TEST_F(GatewayTest, AnswersThatAreNotStreamedHaveALargestSizeTogether) {
  std::vector<std::unique_ptr<HttpTestClient>> clients;
  for (int i = 0; i < 5; ++i) {
    Await([&] { return service_.hoards == i; });
    clients.push_back(Connect());
    clients.back()->Send(PostText({{"prompt", "hoard"}}));
  }
  const HttpAnswer answer = clients.back()->Read();
  EXPECT_EQ(answer.status, 429);
  EXPECT_EQ(CodeOf(answer), "answers_too_large");
  EXPECT_EQ(answer.headers.at("Retry-After"), "1");
  clients.pop_back();
  // The memory of the other answers is free again when their clients go.
  clients.clear();
  Await([this] { return service_.cancelled == 5; });
  EXPECT_EQ(Post({{"prompt", "Once"}}).status, 200);
}

// --- keys
// -----------------------------------------------------------------------------------------------------

TEST_F(GatewayTest, AWrongKeyIsRefusedBeforeTheBody) {
  for (const char* expect : {"", "Expect: 100-continue\r\n"}) {
    const auto stranger = Connect();
    // The body is never sent, and the answer does not wait for it.
    stranger->Send(
        absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer guess\r\n", expect,
                     "Content-Length: 100\r\n\r\n"));
    const HttpAnswer answer = stranger->Read();
    EXPECT_EQ(answer.status, 401);
    EXPECT_EQ(answer.headers.at("Connection"), "close");
    EXPECT_TRUE(stranger->IsClosed());
  }
  EXPECT_EQ(last_refused_, 401);
  EXPECT_EQ(service_.calls, 0);
}

TEST_F(GatewayTest, ARightKeyMayAskWhetherToSendTheBody) {
  const std::string body = R"({"prompt": "Once"})";
  client_->Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: test\r\n", kToken,
                             "Expect: 100-continue\r\nContent-Length: ", body.size(), "\r\n\r\n"));
  EXPECT_EQ(client_->Read().status, 100);
  client_->Send(body);
  EXPECT_EQ(client_->Read().status, 200);
}

// --- connections
// ----------------------------------------------------------------------------------------------

class TwoConnectionsTest : public GatewayTest {
 protected:
  TwoConnectionsTest() : GatewayTest({.limits = {.max_connections = 2}}) {}
};

TEST_F(TwoConnectionsTest, OneMoreTakesThePlaceOfTheOneThatWasIdleLongest) {
  EXPECT_EQ(Get("/health").status, 200);
  const auto half = Connect();
  half->Send("GET /health HTTP/1.1\r\n");
  const auto third = Connect();
  EXPECT_EQ(third->Ask("GET", "/health").status, 200);
  EXPECT_TRUE(client_->IsClosed());
  // A connection on which a request has begun is closed too.
  EXPECT_EQ(Connect()->Ask("GET", "/health").status, 200);
  EXPECT_TRUE(half->IsClosed());
}

TEST_F(TwoConnectionsTest, OneMoreIsToldToComeBackUntilAnAnswerEnds) {
  const auto second = Connect();
  for (HttpTestClient* busy : {client_.get(), second.get()}) busy->Send(PostText({{"prompt", "hang"}}));
  Await([this] { return service_.calls == 2; });
  const auto third = Connect();
  const HttpAnswer answer = third->Read();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.headers.at("Retry-After"), "1");
  EXPECT_EQ(CodeOf(answer), "too_many_connections");
  EXPECT_TRUE(third->IsClosed());
  EXPECT_EQ(last_refused_, 503);
  second->Close();
  Await([this] { return Connect()->Ask("GET", "/health").status == 200; });
}

TEST_F(GatewayTest, AConnectionServesRequestsThatWereSentTogetherInTheirOrder) {
  client_->Send(absl::StrCat(PostText({{"prompt", "busy"}}), PostText({{"prompt", "Once"}, {"stream", true}}),
                             "GET /health HTTP/1.1\r\nHost: test\r\n\r\n"));
  EXPECT_EQ(client_->Read().status, 429);
  EXPECT_THAT(client_->Read().body, StartsWith("data: "));
  EXPECT_THAT(client_->Read().body, HasSubstr("serving"));
}

TEST_F(GatewayTest, ClientsOfHttp10GetAStreamUpToTheEndOfTheConnection) {
  const std::string body = R"({"prompt": "Once", "stream": true})";
  client_->Send(absl::StrCat("POST /v1/completions HTTP/1.0\r\n", kToken, "Content-Length: ", body.size(),
                             "\r\n\r\n", body));
  const HttpAnswer answer = client_->Read();
  EXPECT_THAT(answer.body, ::testing::EndsWith("data: [DONE]\n\n"));
  EXPECT_FALSE(answer.headers.contains("Transfer-Encoding"));
  EXPECT_TRUE(client_->IsClosed());
}

TEST_F(GatewayTest, AnEndThatIsAskedForTakesNoRequestsAndClosesConnections) {
  EXPECT_EQ(Get("/health").status, 200);
  gateway_->Finish(absl::Minutes(1));
  EXPECT_TRUE(client_->IsClosed());
  EXPECT_ANY_THROW(Connect());
}

// --- clients that go away or do not read
// ----------------------------------------------------------------------

TEST_F(GatewayTest, AClientThatGoesAwayCancelsItsCalls) {
  for (const bool stream : {false, true}) {
    for (const char* prompt : {"hang", "endless"}) {
      const int calls = service_.calls, cancelled = service_.cancelled;
      const auto client = Connect();
      client->Send(PostText({{"prompt", {prompt, prompt}}, {"stream", stream}}));
      Await([&] { return service_.calls == calls + 2; });
      client->Close();
      Await([&] { return service_.cancelled == cancelled + 2; });
    }
  }
}

TEST_F(GatewayTest, AnAnswerThatNobodyReadsIsNotGeneratedOn) {
  const auto slow = Connect(4096);
  slow->Send(PostText({{"prompt", "much"}, {"stream", true}}));
  Await([this] { return service_.asked_for_much == 1; });
  // The same answer for a client that asks later, and reads.
  const size_t bytes = MadeUp::kManyChunks * MadeUp::kChunkBytes;
  EXPECT_GT(Post({{"prompt", "much"}, {"stream", true}}).body.size(), bytes);
  EXPECT_LT(service_.written, MadeUp::kManyChunks / 2);
  EXPECT_GT(slow->Read().body.size(), bytes);
}

// --- what is no request
// ---------------------------------------------------------------------------------------

TEST_F(GatewayTest, WhatIsNotHttpIsABadRequest) {
  for (const char* text :
       {"hello\r\n\r\n", "GET /health\r\n\r\n", "GET /health HTTP/1.1\r\nno colon\r\n\r\n",
        "GET /health HTTP/1.1\r\n\r\n", "GET /health HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: a/b\r\n\r\n", "GET /health HTTP/1.1\r\nHost: a@b\r\n\r\n",
        "GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
        "POST /v1/models HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        "POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost : a\r\n\r\n", " GET /health HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"}) {
    const auto client = Connect();
    client->Send(text);
    const HttpAnswer answer = client->Read();
    EXPECT_EQ(answer.status, 400) << text;
    EXPECT_EQ(CodeOf(answer), "invalid_http");
    EXPECT_TRUE(client->IsClosed());
  }
}

TEST_F(GatewayTest, ClientsOfHttp10AreToldThatTheConnectionStays) {
  for (int i = 0; i < 2; ++i) {
    client_->Send("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    const HttpAnswer answer = client_->Read();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.headers.at("Connection"), "keep-alive");
  }
}

TEST_F(GatewayTest, AnEmptyLineBehindABodyIsSkipped) {
  for (int i = 0; i < 2; ++i) {
    client_->Send(PostText({{"prompt", "Once"}}) + "\r\n\r");
    EXPECT_EQ(client_->Read().status, 200);
    client_->Send("\n");
  }
}

TEST_F(GatewayTest, ATargetMayBeAWholeUrl) {
  for (const char* target : {"http://test:8070/health", "HTTPS://test/health?a=b"}) {
    client_->Send(absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: test\r\n\r\n"));
    EXPECT_EQ(client_->Read().status, 200) << target;
  }
  client_->Send("GET http://test HTTP/1.1\r\nHost: test\r\n\r\n");
  EXPECT_EQ(client_->Read().status, 404);
}

TEST_F(GatewayTest, AnswersHaveADateAndNoContentHasNoLength) {
  const HttpAnswer options = client_->Ask("OPTIONS", "*");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.at("Allow"), "GET, HEAD, POST, OPTIONS");
  EXPECT_FALSE(options.headers.contains("Content-Length"));
  EXPECT_TRUE(options.headers.at("Date").ends_with(" GMT"));
}

TEST_F(GatewayTest, ClientsOfHttp10AreNotToldToGoOn) {
  const std::string body = R"({"prompt": "Once"})";
  client_->Send(absl::StrCat("POST /v1/completions HTTP/1.0\r\n", kToken,
                             "Expect: 100-continue\r\nContent-Length: ", body.size(), "\r\n\r\n"));
  client_->Send(body);
  EXPECT_EQ(client_->Read().status, 200);
}

// The bytes that follow would be taken for the next request.
TEST_F(GatewayTest, ABodyWhoseEndIsUnknownEndsTheConnectionEvenOfWhatIsRefused) {
  client_->Send(
      "POST /unknown HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n"
      "GET /health HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(client_->Read().status, 501);
  EXPECT_TRUE(client_->IsClosed());
}

TEST_F(GatewayTest, ASlashAtTheEndMeansNothing) {
  EXPECT_EQ(Get("/v1/models/").body, Get("/v1/models").body);
  EXPECT_EQ(Get("/v1/models//").status, 404);
}

TEST_F(GatewayTest, WhatIsNotSpokenHereIsRefused) {
  EXPECT_EQ(Connect()->Ask("GET", "/health", "Transfer-Encoding: gzip\r\n").status, 501);
  EXPECT_EQ(Connect()->Ask("GET", "/health", "Expect: miracles\r\n").status, 417);
  EXPECT_EQ(Connect()->Ask("GET", "/health", "Content-Encoding: gzip\r\n").status, 415);
  const auto newer = Connect();
  newer->Send("GET /health HTTP/2.0\r\n\r\n");
  EXPECT_EQ(newer->Read().status, 505);
}

TEST_F(GatewayTest, UnknownUrlsAndMethodsAreNamed) {
  const HttpAnswer unknown = Get("/v1/embeddings?a=b");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(CodeOf(unknown), "unknown_url");
  const HttpAnswer method = Get("/v1/completions");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.headers.at("Allow"), "POST, OPTIONS");
  EXPECT_EQ(CodeOf(method), "method_not_allowed");
  EXPECT_EQ(last_refused_, 405);
}

TEST_F(GatewayTest, HeadAndOptionsAreAnswered) {
  const HttpAnswer head = client_->Ask("HEAD", "/health");
  EXPECT_EQ(head.status, 200);
  EXPECT_NE(head.headers.at("Content-Length"), "0");
  EXPECT_EQ(client_->Ask("OPTIONS", "/v1/completions").headers.at("Allow"), "POST, OPTIONS");
  EXPECT_EQ(Get("/v1/models?limit=1").status, 200);
}

}  // namespace
}  // namespace outrider
