// TLS and bearer tokens for servers and channels. Files are read again when they change.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace outrider {

// How a server authenticates itself and its clients. All empty: plaintext, open to everybody.
struct ServerSecurity {
  std::string cert = {};        // PEM certificate chain of the server
  std::string key = {};         // PEM private key for `cert`
  std::string client_ca = {};   // PEM; clients must present a certificate signed by one of these
  std::string token_file = {};  // clients must send one of these bearer tokens, one per line
  // Called with the number of calls refused for their token since the last report, at most once a minute,
  // from a thread that polls. May be null.
  std::function<void(int refused)> on_refused = {};
};

// How a client authenticates the server and itself. All empty: plaintext.
struct ChannelSecurity {
  std::string ca = {};          // PEM; the server's certificate must be signed by one of these
  std::string cert = {};        // PEM certificate chain to present, if the server asks for one
  std::string key = {};         // PEM private key for `cert`
  std::string token_file = {};  // its first line is sent as bearer token with each call
};

// INVALID_ARGUMENT, naming what is missing, for an incomplete combination. NOT_FOUND or INVALID_ARGUMENT,
// naming the file, for one that cannot be read or has the wrong content.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const ServerSecurity& security);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const ChannelSecurity& security);

}  // namespace outrider
