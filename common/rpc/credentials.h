// TLS and bearer tokens. Certificates, keys and tokens are read again when their files change.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace outrider {

// How a server shows who it is, and whom it serves. All empty: plaintext, everybody.
struct ServerSecurity {
  std::string cert = {};        // PEM chain of the server
  std::string key = {};         // PEM private key of it
  std::string client_ca = {};   // PEM; clients must have a certificate signed by one of these
  std::string token_file = {};  // clients must send one of these tokens, one a line
  // Calls that were refused for their token since this was last called, at most once a minute. From gRPC's
  // threads; may be null.
  std::function<void(int refused)> on_refused = {};
};

// The other side of it. All empty: plaintext.
struct ChannelSecurity {
  std::string ca = {};          // PEM; the server's certificate must be signed by one of these
  std::string cert = {};        // PEM chain to show, if the server asks for one
  std::string key = {};         // PEM private key of it
  std::string token_file = {};  // whose first line is sent with each call
};

// INVALID_ARGUMENT naming what is missing for what is there, NOT_FOUND or INVALID_ARGUMENT naming a file that
// cannot be read or is not what it should be.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const ServerSecurity& security);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const ChannelSecurity& security);

}  // namespace outrider
