// The gRPC server of every service: health, reflection for this host, limits, keepalive and orderly
// shutdown.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/credentials.h"
#include "common/rpc/listener.h"
#include "common/rpc/queue_poller.h"
#include "common/rpc/reflection.h"

namespace outrider {

// gRPC's default of 4 MiB would end a stream: a dense batch over a large vocabulary exceeds it.
inline constexpr int kMaxMessageBytes = 64 << 20;

struct ServerOptions {
  std::string health_listen = {};  // a second address with only grpc.health.v1, plaintext; empty: none
  ServerSecurity security = {};
  int max_receive_bytes = kMaxMessageBytes;  // a larger message ends its call with RESOURCE_EXHAUSTED
  // The most calls that one connection may have open; further calls wait at the client. More than the
  // requests that a service admits, so that the service can refuse the excess with a reason.
  int max_streams = 4096;
  // Called with an address and the number of connections that it turned away since the last report because
  // too many were open. At most once a minute, on a thread of its own. May be null.
  std::function<void(const std::string& address, int connections)> on_turned_away = {};
};

// Owns the listeners. Thread-safe.
class RpcServer {
 public:
  // Starts to serve at `listen`, "HOST:PORT" or "unix:PATH"; port 0 picks a free port. Health reports
  // NOT_SERVING until SetServing, except for the service "live", which is SERVING until SetLive. UNAVAILABLE,
  // naming the address, if it cannot be bound; the errors of MakeServerCredentials.
  //
  // `poller` polls the queue of a service with asynchronous methods, and must outlive the server.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const std::string& listen,
                                                          const ServerOptions& options,
                                                          const std::vector<grpc::Service*>& services,
                                                          QueuePoller* poller = nullptr);
  ~RpcServer() { Shutdown(absl::ZeroDuration()); }

  // The bound address, with the port that was picked.
  const std::string& address() const { return main_.listener->address(); }

  // Null unless started with a poller. Not after Shutdown.
  QueuePoller* poller() { return poller_; }
  grpc::ServerCompletionQueue* queue() { return main_.queue.get(); }

  // A channel to this server within its own process, without a socket. Must not be used after Shutdown.
  std::shared_ptr<grpc::Channel> InProcessChannel();

  // Sets the health of service "". Not after Shutdown.
  void SetServing(bool serving) { SetHealth("", serving); }
  // Sets the health of service "live". Not after Shutdown.
  void SetLive(bool live) { SetHealth("live", live); }

  // Refuses new calls, lets running ones finish within `drain`, then cancels them.
  void Shutdown(absl::Duration drain);

 private:
  // A listener and the server of its connections, with some of the services.
  struct Port {
    absl::Status Start(const std::string& listen, int most_connections, const ServerOptions& options,
                       const std::shared_ptr<grpc::ServerCredentials>& credentials,
                       const grpc::ResourceQuota& quota, const std::vector<grpc::Service*>& services,
                       grpc::CallbackGenericService* generic, bool has_queue);

    std::unique_ptr<grpc::ServerCompletionQueue> queue;
    std::unique_ptr<grpc::Server> server;
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
    std::unique_ptr<Listener> listener;
  };

  RpcServer() = default;
  void SetHealth(const char* service, bool healthy) {
    for (const Port* port : {&main_, &health_}) {
      if (port->server != nullptr) port->server->GetHealthCheckService()->SetServingStatus(service, healthy);
    }
  }

  QueuePoller* poller_ = nullptr;
  // A service without methods for health_, which it outlives: gRPC starts no server that has only health.
  grpc::CallbackGenericService nothing_;
  StableReflection reflection_{[this] { return InProcessChannel(); }};
  Port main_;
  Port health_;
};

// Arguments for channels between the services: message limits, keepalive also while idle, 5 s for an attempt
// to connect, at most 500 ms from one that failed to the next, and no proxy unless the environment names one
// for gRPC alone (grpc_proxy).
grpc::ChannelArguments ChannelArguments();

}  // namespace outrider
