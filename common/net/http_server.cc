#include "common/net/http_server.h"

#include <boost/asio/ip/tcp.hpp>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/obs/log.h"
#include "common/rpc/address.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

using asio::ip::tcp;
using boost::system::error_code;

constexpr char kClose[] = "close";
constexpr int kBacklog = 512;
// The most connections beyond the limit that get a refusal at a time; more are closed without one.
constexpr size_t kMaxTurnedAway = 64;
// The pause after a failure to accept, for lack of descriptors or memory.
constexpr std::chrono::milliseconds kAcceptPause{100};

}  // namespace

// A client's connection. Reads requests, one after the other, and answers them. For one executor thread.
class HttpConnection {
 public:
  // `handlers` and `limits` must outlive this. `on_busy` is called with true when a request is complete, and
  // with false when its answer is sent or given up.
  HttpConnection(std::shared_ptr<HttpStream> stream, const HttpHandlers& handlers, const HttpLimits& limits,
                 std::function<void(bool)> on_busy)
      : stream_(std::move(stream)), handlers_(handlers), limits_(limits), on_busy_(std::move(on_busy)) {}

  // Serves requests until the connection ends.
  asio::awaitable<void> Run() {
    waiting_since_ = Clock::now();
    bool going_on = co_await stream_->Handshake(Clock::now() + limits_.head);
    if (going_on) {
      client_.address = stream_->ClientAddress();
      client_.certificate = stream_->ClientCertificate();
      while (going_on) going_on = co_await Exchange();
      co_await stream_->Linger(Clock::now() + limits_.linger);
    }
    stream_->Close();
  }

  // Call instead of Run. Tells the client to try again later.
  asio::awaitable<void> TurnAway() {
    const bool secured = co_await stream_->Handshake(Clock::now() + limits_.linger);
    if (secured) {
      const HttpResponse refusal = handlers_.refuse(503, "too many connections are open", /*path=*/"");
      co_await stream_->Write(
          absl::StrCat(HttpHead(refusal, refusal.body.size(), false, kClose), refusal.body), limits_.linger);
      co_await stream_->Linger(Clock::now() + limits_.linger);
    }
    stream_->Close();
  }

  // The time since which the connection waits for the head of a request; nullopt if it does not wait.
  std::optional<Clock::time_point> waiting_since() const { return waiting_since_; }

  // Ends the connection after the answer in progress, if there is one.
  void Finish() {
    finishing_ = true;
    if (waiting_) stream_->Close();
  }
  // Ends the connection now.
  void Close() {
    waiting_since_.reset();
    stream_->Close();
  }

 private:
  // Serves one request. False if it is the last.
  asio::awaitable<bool> Exchange() {
    HttpParser parser(limits_);
    waiting_since_ = Clock::now();
    std::optional<HttpProblem> problem = co_await ReadHead(parser);
    waiting_since_.reset();
    HttpRequest request;
    if (!problem) {
      request = parser.TakeHead();
      request.client = &client_;
      problem = parser.problem();
      if (!problem && request.path.size() > limits_.max_url_bytes) {
        problem = HttpProblem{414, absl::StrCat("a URL has at most ", limits_.max_url_bytes, " bytes")};
      }
    }
    if (!problem) {
      if (const std::optional<HttpResponse> early = handlers_.check(request)) {
        // A body that is not read cannot be told from the next request.
        finishing_ |= early->close || !parser.done();
        const bool sent = co_await Send(*early, parser, request.method != "HEAD");
        co_return sent && !finishing_;
      }
      problem = co_await ReadBody(parser);
    }
    if (problem) {
      finishing_ = true;
      if (problem->status != 0) {
        co_await Send(handlers_.refuse(problem->status, problem->message, request.path), parser, true);
      }
      co_return false;
    }
    request.body = parser.TakeBody();
    co_return co_await Answer(parser, request);
  }

  // Reads until `done`. A problem of status 0 means that the client has gone or sent nothing.
  asio::awaitable<std::optional<HttpProblem>> Read(HttpParser& parser, bool (HttpParser::*done)() const,
                                                   Clock::time_point deadline) {
    while (!(parser.*done)()) {
      if (const size_t taken = stream_->received().empty() ? 0 : parser.Put(stream_->received()); taken > 0) {
        stream_->Take(taken);
        if (!parser.problem()) continue;
      }
      if (parser.problem()) co_return parser.problem();
      const HttpStream::Read read = co_await stream_->ReadMore(deadline);
      if (read == HttpStream::Read::kEnd) co_return HttpProblem{0, "the client has gone"};
      if (read == HttpStream::Read::kLate) co_return HttpProblem{408, "the request took too long to come"};
    }
    co_return std::nullopt;
  }

  // Drops the empty lines before a request, which some clients send behind a body (RFC 9112, 2.2).
  bool HasBegunRequest() {
    const absl::string_view received = stream_->received();
    size_t empty = 0;
    while (absl::StartsWith(received.substr(empty), "\r\n")) empty += 2;
    stream_->Take(empty);
    return !stream_->received().empty() && stream_->received() != "\r";
  }

  asio::awaitable<std::optional<HttpProblem>> ReadHead(HttpParser& parser) {
    const auto patience = std::exchange(first_, false) ? limits_.head : limits_.idle;
    const Clock::time_point deadline = Clock::now() + patience;
    while (!HasBegunRequest()) {
      if (finishing_) co_return HttpProblem{0, "no request is in progress"};
      waiting_ = true;
      const HttpStream::Read read = co_await stream_->ReadMore(deadline);
      waiting_ = false;
      if (read != HttpStream::Read::kMore) co_return HttpProblem{0, "no request came"};
    }
    co_return co_await Read(parser, &HttpParser::head_done, Clock::now() + limits_.head);
  }

  asio::awaitable<std::optional<HttpProblem>> ReadBody(HttpParser& parser) {
    parser.AllowBody();
    if (parser.problem()) co_return parser.problem();
    if (parser.expects_continue() && !parser.done() && stream_->received().empty()) {
      const bool sent = co_await stream_->Write("HTTP/1.1 100 Continue\r\n\r\n", limits_.write);
      if (!sent) co_return HttpProblem{0, "the client has gone"};
    }
    co_return co_await Read(parser, &HttpParser::done, Clock::now() + limits_.body);
  }

  asio::awaitable<bool> Answer(const HttpParser& parser, const HttpRequest& request) {
    on_busy_(true);
    const absl::Cleanup idle = [this] {
      stream_->Unwatch();
      client_.on_gone = nullptr;
      on_busy_(false);
    };
    stream_->Watch([this] {
      client_.gone = true;
      if (client_.on_gone) client_.on_gone();
    });
    const HttpResponse response = co_await handlers_.answer(request);
    finishing_ |= response.close;
    const bool sent = co_await Send(response, parser, request.method != "HEAD");
    co_return sent && !finishing_;
  }

  asio::awaitable<bool> Send(const HttpResponse& response, const HttpParser& parser, bool with_body) {
    const bool is_open = response.next_piece != nullptr && !response.length;
    const bool chunks = is_open && parser.is_http11();
    finishing_ |= !parser.keep_alive() || (is_open && !chunks);
    // HTTP/1.0 clients that asked for keep-alive want to be told.
    const char* const connection = finishing_ ? kClose : parser.is_http11() ? "" : "keep-alive";
    if (response.next_piece != nullptr) {
      co_return co_await SendPieces(response, HttpHead(response, response.length, chunks, connection),
                                    chunks);
    }
    std::string text = HttpHead(response, response.body.size(), false, connection);
    if (with_body) text += response.body;
    co_return co_await stream_->Write(text, limits_.write);
  }

  // True if the whole answer was sent.
  asio::awaitable<bool> SendPieces(const HttpResponse& response, std::string text, bool chunks) {
    while (const std::optional<std::string> piece = co_await response.next_piece()) {
      // An empty chunk would be the end.
      if (chunks && !piece->empty()) absl::StrAppend(&text, absl::Hex(piece->size()), "\r\n", *piece, "\r\n");
      if (!chunks) text += *piece;
      const bool sent = co_await stream_->Write(text, limits_.write);
      if (!sent) co_return false;
      text.clear();
    }
    if (chunks) text += "0\r\n\r\n";
    co_return co_await stream_->Write(text, limits_.write);
  }

  const std::shared_ptr<HttpStream> stream_;
  const HttpHandlers& handlers_;
  const HttpLimits& limits_;
  const std::function<void(bool)> on_busy_;
  HttpClient client_;
  bool first_ = true;       // no request has come yet
  bool waiting_ = false;    // for the first byte of a request
  bool finishing_ = false;  // the request in progress is the last
  std::optional<Clock::time_point> waiting_since_;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(absl::string_view flag,
                                                              const std::string& listen,
                                                              std::unique_ptr<TlsFiles> tls,
                                                              const HttpLimits& limits,
                                                              HttpHandlers handlers) {
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(tls), limits, std::move(handlers)));
  OUTRIDER_TRY(server->Listen(flag, listen));
  asio::co_spawn(server->io_, server->Accept(), asio::detached);
  server->thread_ = std::thread([&io = server->io_] { io.run(); });
  return server;
}

HttpServer::~HttpServer() {
  asio::post(io_, [this] {
    error_code ignored;
    acceptor_.close(ignored);
    for (const Connection& connection : connections_) connection->Close();
    work_.reset();
  });
  if (thread_.joinable()) thread_.join();
}

absl::Status HttpServer::Listen(absl::string_view flag, const std::string& listen) {
  const std::optional<HostPort> wanted = ParseHostPort(listen);
  if (!wanted) return Invalid(flag, ": '", listen, "' is not HOST:PORT");
  error_code error;
  const auto found =
      tcp::resolver(io_).resolve(wanted->host, absl::StrCat(wanted->port), tcp::resolver::passive, error);
  if (!error) {
    const tcp::endpoint end = *found.begin();
    acceptor_.open(end.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(end, error);
    if (!error) acceptor_.listen(kBacklog, error);
  }
  if (error) {
    return absl::UnavailableError(absl::StrCat(flag, ": cannot listen on ", listen, ": ", error.message()));
  }
  address_ = absl::StrCat(listen.substr(0, listen.rfind(':')), ":", acceptor_.local_endpoint().port());
  return absl::OkStatus();
}

asio::awaitable<void> HttpServer::Accept() {
  SocketEvent pause(io_.get_executor());
  while (acceptor_.is_open()) {
    error_code error;
    tcp::socket socket = co_await acceptor_.async_accept(asio::redirect_error(asio::use_awaitable, error));
    if (error && acceptor_.is_open()) co_await pause.Wait(Clock::now() + kAcceptPause);
    if (error) continue;
    try {
      Begin(std::move(socket));
    } catch (...) {  // out of memory
      LogException("http connection not begun", std::current_exception());
    }
  }
}

void HttpServer::Begin(tcp::socket socket) {
  const bool served = served_ < limits_.max_connections || MakeRoom();
  if (!served && connections_.size() >= static_cast<size_t>(limits_.max_connections) + kMaxTurnedAway) return;
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  auto connection = std::make_shared<HttpConnection>(
      std::make_shared<HttpStream>(std::move(socket), tls_ == nullptr ? nullptr : tls_->Current()), handlers_,
      limits_, [this](bool busy) {
        absl::MutexLock lock(&mutex_);
        answering_ += busy ? 1 : -1;
      });
  connections_.insert(connection);
  served_ += served;
  absl::Cleanup not_begun = [&] { End(connection, served, nullptr); };
  asio::co_spawn(
      io_, served ? connection->Run() : connection->TurnAway(),
      [this, connection, served](const std::exception_ptr& thrown) { End(connection, served, thrown); });
  std::move(not_begun).Cancel();
}

bool HttpServer::MakeRoom() {
  HttpConnection* idlest = nullptr;
  for (const Connection& connection : connections_) {
    if (!connection->waiting_since()) continue;
    if (idlest == nullptr || connection->waiting_since() < idlest->waiting_since()) idlest = connection.get();
  }
  if (idlest != nullptr) idlest->Close();
  return idlest != nullptr;
}

void HttpServer::End(const Connection& connection, bool served, const std::exception_ptr& thrown) {
  connection->Close();
  connections_.erase(connection);
  served_ -= served;
  if (thrown) LogException("http connection ended by an exception", thrown);
}

void HttpServer::Finish(absl::Duration patience) {
  asio::post(io_, asio::use_future([this] {
               error_code ignored;
               acceptor_.close(ignored);
               for (const Connection& connection : connections_) connection->Finish();
             }))
      .wait();
  absl::MutexLock lock(&mutex_);
  const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return answering_ == 0; };
  mutex_.AwaitWithTimeout(absl::Condition(&none), patience);
}

}  // namespace outrider
