// An HTTP/1.1 server.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/net/http_parser.h"
#include "common/net/http_stream.h"

namespace outrider {

// The functions that answer requests. Called on the connections' thread.
struct HttpHandlers {
  // The answer to a request whose head is enough to decide it, usually a refusal. If there is none, the body
  // is read.
  std::function<std::optional<HttpResponse>(const HttpRequest& head)> check;
  // The answer to a request. `request` stays valid until the answer is sent.
  std::function<asio::awaitable<HttpResponse>(const HttpRequest& request)> answer;
  // The answer to a malformed or unacceptable request. `path` is empty if it is not known.
  std::function<HttpResponse(int status, const std::string& message, const std::string& path)> refuse;
};

class HttpConnection;

// Runs all connections on a thread of its own, which calls the handlers. Thread-safe.
class HttpServer {
 public:
  // Listens on `listen`, HOST:PORT, the value of `flag`; port 0 picks one. Plaintext if `tls` is null.
  // INVALID_ARGUMENT if it is not HOST:PORT, UNAVAILABLE if the address cannot be bound, both naming the
  // flag.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(absl::string_view flag, const std::string& listen,
                                                           std::unique_ptr<TlsFiles> tls,
                                                           const HttpLimits& limits, HttpHandlers handlers);
  // Ends all connections, and waits for the handlers that have begun.
  ~HttpServer();

  // The address that was bound, with the port that was picked.
  const std::string& address() const { return address_; }

  // Takes no more connections and requests, and waits until the answers in progress are sent, for at most
  // `patience`.
  void Finish(absl::Duration patience);

 private:
  using Connection = std::shared_ptr<HttpConnection>;

  HttpServer(std::unique_ptr<TlsFiles> tls, const HttpLimits& limits, HttpHandlers handlers)
      : tls_(std::move(tls)), limits_(limits), handlers_(std::move(handlers)) {}
  absl::Status Listen(absl::string_view flag, const std::string& listen);
  asio::awaitable<void> Accept();
  void Begin(asio::ip::tcp::socket socket);
  // Makes room for another connection: ends the one that has waited longest for the head of a request. False
  // if none waits.
  bool MakeRoom();
  void End(const Connection& connection, bool served, const std::exception_ptr& thrown);

  const std::unique_ptr<TlsFiles> tls_;
  const HttpLimits limits_;
  const HttpHandlers handlers_;
  std::string address_;
  asio::io_context io_{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_ =
      asio::make_work_guard(io_);
  asio::ip::tcp::acceptor acceptor_{io_};
  absl::flat_hash_set<Connection> connections_;  // used by thread_, like the next member
  int served_ = 0;                               // connections that are not turned away
  std::thread thread_;

  absl::Mutex mutex_;
  int answering_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace outrider
