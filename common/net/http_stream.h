// The bytes of one HTTP connection, with TLS or without, and the files for TLS.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/net/asio.h"

namespace outrider {

// The TLS context of the HTTP listener, from the files that the gRPC server uses too. For one thread.
class TlsFiles {
 public:
  // PEM files: the server's certificate chain, its private key, and, unless empty, the CAs of clients, which
  // must then present a certificate. INVALID_ARGUMENT, naming the file, if one cannot be used.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Open(std::string cert, std::string key,
                                                        std::string client_ca);

  // The context for a new connection. Files that changed are read again, at most once a second. If they
  // cannot be used, this is logged once, and the previous context stays in use.
  std::shared_ptr<boost::asio::ssl::context> Current();

 private:
  using Times = std::vector<std::filesystem::file_time_type>;

  TlsFiles(std::string cert, std::string key, std::string client_ca)
      : cert_(std::move(cert)), key_(std::move(key)), client_ca_(std::move(client_ca)) {}
  absl::Status Read();
  Times TimesOfFiles() const;

  const std::string cert_, key_, client_ca_;
  Times times_;
  Clock::time_point checked_;
  std::shared_ptr<boost::asio::ssl::context> context_;
};

// Held by shared_ptr. For one coroutine on one executor thread. The coroutine never waits beyond the
// deadlines that it passes.
class HttpStream : public std::enable_shared_from_this<HttpStream> {
 public:
  using Socket = asio::ip::tcp::socket;
  enum class Read { kMore, kEnd, kLate };

  // `tls` null: plaintext.
  HttpStream(Socket socket, std::shared_ptr<asio::ssl::context> tls);

  // Must be called first with TLS. False if it failed or took too long.
  asio::awaitable<bool> Handshake(Clock::time_point deadline);
  // The name in the client's certificate, chosen as gRPC does: the first alternative name, else the common
  // name. Empty if the client presented no certificate.
  std::string ClientCertificate();
  std::string ClientAddress() const {
    boost::system::error_code error;
    const auto end = socket_.remote_endpoint(error);
    return error ? "" : end.address().to_string();
  }

  // The bytes that were received and not yet taken.
  absl::string_view received() const { return received_; }
  void Take(size_t bytes) { received_.erase(0, bytes); }
  asio::awaitable<Read> ReadMore(Clock::time_point deadline);

  // Reads ahead until Unwatch, and calls `on_gone` when the client goes away. If the client sends more than
  // kReadAhead meanwhile, only a write notices that it has gone.
  void Watch(std::function<void()> on_gone) {
    if (ended_) return on_gone();
    watched_ = true;
    on_gone_ = std::move(on_gone);
    if (received_.size() < kReadAhead) StartRead();
  }
  void Unwatch() {
    watched_ = false;
    on_gone_ = nullptr;
  }

  // False if the client has gone, or took nothing for `patience`.
  asio::awaitable<bool> Write(absl::string_view bytes, Clock::duration patience);

  // Tells the client that nothing more comes, and drops what it sends until it has closed its end as well.
  asio::awaitable<void> Linger(Clock::time_point deadline);
  // Ends the operations in progress.
  void Close() {
    boost::system::error_code ignored;
    socket_.close(ignored);
    End();
  }

 private:
  static constexpr size_t kReadAhead = 16 << 10;

  void StartRead();
  void End() {
    ended_ = true;
    if (const auto on_gone = std::exchange(on_gone_, nullptr)) on_gone();
  }

  Socket socket_;
  const std::shared_ptr<asio::ssl::context> context_;
  std::optional<asio::ssl::stream<Socket&>> tls_;
  std::array<char, 16 << 10> piece_;  // buffer of the read in progress
  std::string received_;
  bool reading_ = false;
  bool ended_ = false;
  bool watched_ = false;
  std::function<void()> on_gone_;
  SocketEvent read_event_;  // notified of bytes, and of the end

  // State of the handshake or the write in progress.
  bool busy_ = false;
  boost::system::error_code error_;
  size_t written_ = 0;
  SocketEvent write_event_;
};

}  // namespace outrider
