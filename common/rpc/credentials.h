// TLS and bearer tokens for servers and channels. Files are read again when they change.
#pragma once

#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace outrider {

// How a server authenticates itself and its clients. All empty: plaintext, open to everybody.
struct ServerSecurity {
  std::string cert = {};        // PEM certificate chain of the server
  std::string key = {};         // PEM private key for `cert`
  std::string client_ca = {};   // PEM; clients must present a certificate signed by one of these
  std::string token_file = {};  // clients must send one of these bearer tokens, one per line
  // Called with the number of calls that were refused for their token since the last report. At most once a
  // minute, on a thread that polls for gRPC. May be null.
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

// The token of an authorization header, "Bearer TOKEN" (RFC 6750), whatever the case of its scheme; empty if
// it has none.
absl::string_view BearerToken(absl::string_view authorization);

// One token per line; blank lines are ignored. The file is read again when it changes; a version without a
// token is ignored. Thread-safe.
class TokenFile {
 public:
  // NOT_FOUND or INVALID_ARGUMENT, naming the file, if it cannot be read or has no token.
  static absl::StatusOr<std::shared_ptr<TokenFile>> Open(const std::string& path);

  // Checks the value of an authorization header (empty if there was none): OK if it has one of the tokens,
  // else UNAUTHENTICATED. The time taken does not depend on how much of a token is right.
  absl::Status Check(absl::string_view authorization);

  // The authorization header that a client sends.
  std::string Authorization();

 private:
  explicit TokenFile(std::string path) : path_(std::move(path)) {}
  // Reads the file. Returns whether it has a token.
  bool Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadIfChanged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  absl::Mutex mutex_;
  std::vector<std::string> tokens_ ABSL_GUARDED_BY(mutex_);  // never empty once opened
  std::filesystem::file_time_type changed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace outrider
