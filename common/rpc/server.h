// The gRPC server of every service: health, reflection for this host, limits, keepalive and orderly
// shutdown.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/credentials.h"
#include "common/rpc/queue_poller.h"

namespace outrider {

// gRPC's default of 4 MiB would end a stream: a dense batch over a large vocabulary exceeds it.
inline constexpr int kMaxMessageBytes = 64 << 20;

struct ServerOptions {
  std::string health_listen = {};  // a second address with only grpc.health.v1, plaintext; empty: none
  ServerSecurity security = {};
  int max_receive_bytes = kMaxMessageBytes;  // a larger message ends its call with RESOURCE_EXHAUSTED
  // Calls that one connection may have open; further ones wait at the client. More than the requests that a
  // service admits, so that the excess is refused with a reason.
  int max_streams = 4096;
};

// Owns the listeners. Thread-safe.
class RpcServer {
 public:
  // Starts to serve at `listen`, "HOST:PORT" or "unix:PATH"; port 0 picks a free port. Health reports
  // NOT_SERVING until SetServing, except for the service "live", which is SERVING until SetLive. UNAVAILABLE,
  // naming the address, if it cannot be bound; the errors of MakeServerCredentials.
  //
  // `poller` polls the queue of a service with asynchronous methods, and outlives the server.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const std::string& listen,
                                                          const ServerOptions& options,
                                                          grpc::Service* service,
                                                          QueuePoller* poller = nullptr);
  ~RpcServer() { Shutdown(absl::ZeroDuration()); }

  // The bound address, with the port that was picked.
  const std::string& address() const { return address_; }

  // Null unless started with a poller. Not after Shutdown.
  QueuePoller* poller() { return poller_; }
  grpc::ServerCompletionQueue* queue() { return queue_.get(); }

  // A channel to this server within its own process, without a socket. Must not be used after Shutdown.
  std::shared_ptr<grpc::Channel> InProcessChannel();

  // Sets the health of service "". Not after Shutdown.
  void SetServing(bool serving) { SetHealth("", serving); }
  // Sets the health of service "live". Not after Shutdown.
  void SetLive(bool live) { SetHealth("live", live); }

  // Refuses new calls, lets running ones finish within `drain`, then cancels them.
  void Shutdown(absl::Duration drain);

 private:
  RpcServer() = default;
  void SetHealth(const char* service, bool healthy) {
    for (grpc::Server* server : {server_.get(), health_server_.get()}) {
      if (server != nullptr) server->GetHealthCheckService()->SetServingStatus(service, healthy);
    }
  }

  std::string address_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  QueuePoller* poller_ = nullptr;
  // For health_server_, which it outlives: gRPC starts no server that has only health. It has no methods.
  grpc::CallbackGenericService nothing_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::Server> health_server_;
};

// Arguments for channels between the services: message limits, keepalive also while idle, 5 s for an attempt
// to connect, at most 500 ms from one that failed to the next, and no proxy unless the environment names one
// for gRPC alone (grpc_proxy).
grpc::ChannelArguments ChannelArguments();

}  // namespace outrider
