#include "common/net/http_server.h"

#include <boost/asio/ip/tcp.hpp>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/obs/log.h"

namespace outrider {
namespace {

using asio::ip::tcp;
using boost::system::error_code;

constexpr int kBacklog = 512;
// The most connections beyond the limit that are told so at a time; more are closed without a word.
constexpr size_t kMaxTurnedAway = 64;
// The pause after a failure to accept, for lack of descriptors or memory.
constexpr std::chrono::milliseconds kAcceptPause{100};

struct HostAndPort {
  std::string host;  // without brackets
  std::string port;
};

absl::StatusOr<HostAndPort> ParseListen(absl::string_view flag, const std::string& listen) {
  const size_t colon = listen.rfind(':');
  std::string host = listen.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  int port = -1;
  if (colon == std::string::npos || host.empty() || !absl::SimpleAtoi(listen.substr(colon + 1), &port) ||
      port < 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": '", listen, "' is not HOST:PORT"));
  }
  return HostAndPort{std::move(host), absl::StrCat(port)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(absl::string_view flag,
                                                              const std::string& listen,
                                                              std::unique_ptr<TlsFiles> tls,
                                                              const HttpLimits& limits,
                                                              HttpHandlers handlers) {
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(tls), limits, std::move(handlers)));
  if (absl::Status status = server->Listen(flag, listen); !status.ok()) return status;
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
  const absl::StatusOr<HostAndPort> wanted = ParseListen(flag, listen);
  if (!wanted.ok()) return wanted.status();
  error_code error;
  const auto found = tcp::resolver(io_).resolve(wanted->host, wanted->port, tcp::resolver::passive, error);
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
    if (!error) {
      TryBegin(std::move(socket));
    } else if (acceptor_.is_open()) {
      co_await pause.Wait(Clock::now() + kAcceptPause);
    }
  }
}

void HttpServer::TryBegin(tcp::socket socket) {
  try {
    Begin(std::move(socket));
  } catch (...) {
    LogException("http connection not begun", std::current_exception());
  }
}

void HttpServer::Begin(tcp::socket socket) {
  const bool served = served_ < limits_.max_connections || MakeRoom();
  if (!served && connections_.size() >= static_cast<size_t>(limits_.max_connections) + kMaxTurnedAway) return;
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  auto connection = std::make_shared<HttpConnection>(
      std::make_shared<HttpStream>(std::move(socket), tls_ == nullptr ? nullptr : tls_->Current()), handlers_,
      limits_, [this](bool busy) { Count(busy); });
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

void HttpServer::Count(bool busy) {
  absl::MutexLock lock(&mutex_);
  answering_ += busy ? 1 : -1;
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
