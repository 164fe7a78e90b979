// TLS for the HTTP listener, from the files that the gRPC server uses too.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/event.h"

namespace outrider {

// One thread.
class TlsFiles {
 public:
  // PEM files: the server's certificate chain, its private key, and, unless empty, the authorities of
  // clients, which must then show a certificate. INVALID_ARGUMENT naming what cannot be used.
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

// The name of the peer's certificate, as gRPC has it: the first alternative name, else the common name. Empty
// if the peer showed no certificate.
std::string NameOfPeer(SSL* connection);

}  // namespace outrider
