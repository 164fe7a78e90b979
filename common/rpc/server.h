// A gRPC server as all three services run it: health, reflection, limits, keepalive, and an orderly end.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/credentials.h"

namespace outrider {

// Raised from gRPC's 4 MiB, which would end a stream: a dense batch of a large vocabulary passes it.
inline constexpr int kMaxMessageBytes = 64 << 20;

struct ServerOptions {
  std::string listen;         // "HOST:PORT" or "unix:PATH"; port 0 picks one
  std::string health_listen;  // a second address with nothing but grpc.health.v1, plaintext; empty: none
  ServerSecurity security = {};
};

// Thread-safe.
class RpcServer {
 public:
  // Starts to serve; health answers NOT_SERVING until SetServing, but for service "live", which is SERVING
  // for as long as the process is. UNAVAILABLE naming the address if it cannot be had; as
  // MakeServerCredentials if that fails.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const ServerOptions& options,
                                                          grpc::Service* service);
  ~RpcServer();

  // The address that was bound, with the port that was picked.
  const std::string& address() const { return address_; }

  // A channel to this server from its own process, without a socket. Must not be used after Shutdown.
  std::shared_ptr<grpc::Channel> InProcessChannel();

  // What health says of service "".
  void SetServing(bool serving);

  // Takes no new calls, lets running ones end until the deadline, then cancels them.
  void Shutdown(absl::Duration drain);

 private:
  RpcServer() = default;

  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::Server> health_server_;
};

// Arguments of a channel between our services: message limits, keepalive, and reconnect backoff of at most
// 500 ms.
grpc::ChannelArguments ChannelArguments();

}  // namespace outrider
