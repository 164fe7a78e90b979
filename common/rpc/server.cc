#include "common/rpc/server.h"

#include <google/protobuf/message_lite.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/rpc/address.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// A peer that is silent for kKeepaliveMs is pinged, even if no call is open. Its connection is closed if it
// does not answer within kKeepaliveTimeoutMs.
constexpr int kKeepaliveMs = 20'000;
constexpr int kKeepaliveTimeoutMs = 10'000;

// The time that one attempt to connect may take, for TCP, TLS and HTTP/2 together: gRPC's minimum reconnect
// backoff. An attempt that is refused fails at once, and the next one follows within kMaxBackoffMs.
constexpr int kConnectTimeoutMs = 5'000;
constexpr int kFirstBackoffMs = 100;
constexpr int kHandshakeTimeoutMs = 10'000;
constexpr int kMaxBackoffMs = 500;

// Bytes that gRPC may hold for all connections of a server: more than a dozen messages of the largest size.
// Beyond it, gRPC shrinks its windows and then closes connections, so that no set of clients takes the memory
// of the process.
constexpr size_t kBufferBytes = size_t{1} << 30;

// The most connections to the health address. Probes are few.
constexpr int kMaxProbeConnections = 64;

// Sets keepalive, which is the same for servers and channels.
template <class SetInt>
void SetKeepalive(SetInt set) {
  set(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // By default gRPC stops after two pings without data, and a lost idle connection is noticed only when the
  // next request needs it.
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

// Keeps gRPC and protobuf from writing their own lines to stderr: their errors come back as a status. Only
// the last message before an abort remains. GRPC_VERBOSITY shows everything that gRPC logs.
void QuietLibraries() {
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel level, const char* file, int line, const std::string& message) {
        if (level == google::protobuf::LOGLEVEL_FATAL)
          std::cerr << file << ":" << line << ": " << message << "\n";
      });
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return;
  gpr_set_log_function([](gpr_log_func_args* args) {
    if (!absl::StartsWith(args->message, "assertion failed")) return;
    std::cerr << args->file << ":" << args->line << ": " << args->message << "\n";
  });
}

// gRPC runs callbacks on a queue and threads that all servers and channels of a process share. It ends them
// with the last server or channel that has callbacks and restarts them with the next. Ending them sometimes
// frees the queue twice (seen with 1.51). A server without a port keeps them until the process ends.
void KeepCallbackThreads() {
  [[maybe_unused]] static const grpc::Server* const kept = [] {
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(new grpc::CallbackGenericService);
    return builder.BuildAndStart().release();
  }();
}

// Removes reflection, whose library adds itself to every server of the process.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins, [](const auto& plugin) { return plugin->name() == "proto_server_reflection"; });
  }
};

}  // namespace

absl::Status RpcServer::Port::Start(const std::string& listen, int most, const ServerOptions& options,
                                    const std::shared_ptr<grpc::ServerCredentials>& credentials,
                                    const grpc::ResourceQuota& quota,
                                    const std::vector<grpc::Service*>& services,
                                    grpc::CallbackGenericService* generic, bool has_queue) {
  listener = OUTRIDER_TRY(Listener::Bind(listen));
  grpc::ServerBuilder builder;
  if (has_queue) queue = builder.AddCompletionQueue();
  using External = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  acceptor = builder.experimental().AddExternalConnectionAcceptor(External::FROM_FD, credentials);
  for (grpc::Service* service : services) builder.RegisterService(service);
  if (generic != nullptr) builder.RegisterCallbackGenericService(generic);
  builder.SetMaxReceiveMessageSize(options.max_receive_bytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  builder.SetResourceQuota(quota);
  // Other hosts need not learn which methods there are.
  if (!IsLocalAddress(listen)) builder.SetOption(std::make_unique<WithoutReflection>());
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams);
  SetKeepalive([&](const char* name, int value) { builder.AddChannelArgument(name, value); });
  // Clients ping every kKeepaliveMs. gRPC would close their connections for that, since its default limit is
  // one ping in five minutes.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kKeepaliveMs / 2);
  // The time that a connection has for TLS and the first bytes of HTTP/2.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  server = builder.BuildAndStart();
  if (server == nullptr) return absl::InternalError("gRPC cannot start a server");
  listener->Start(
      most,
      [this](int listener, int connection) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
        parameters.listener_fd = listener;
        parameters.fd = connection;
        acceptor->HandleNewConnection(&parameters);
      },
      [on_turned_away = options.on_turned_away, address = listener->address()](int connections) {
        if (on_turned_away) on_turned_away(address, connections);
      });
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const std::string& listen,
                                                            const ServerOptions& options,
                                                            const std::vector<grpc::Service*>& services,
                                                            QueuePoller* poller) {
  QuietLibraries();
  KeepCallbackThreads();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  auto credentials = OUTRIDER_TRY(MakeServerCredentials(options.security));
  std::unique_ptr<RpcServer> server(new RpcServer);
  grpc::ResourceQuota quota("server");
  quota.Resize(kBufferBytes);
  OUTRIDER_TRY(server->main_.Start(listen, MaxConnections(), options, credentials, quota, services,
                                   IsLocalAddress(listen) ? &server->reflection_ : nullptr,
                                   poller != nullptr));
  if (!options.health_listen.empty()) {
    // Probes have no certificates, and learn only whether the process is healthy.
    OUTRIDER_TRY(server->health_.Start(options.health_listen,
                                       std::min(MaxConnections(), kMaxProbeConnections), options,
                                       grpc::InsecureServerCredentials(), quota,
                                       /*services=*/{}, &server->nothing_, /*has_queue=*/false));
  }
  if (poller != nullptr) poller->Attach(server->queue());
  server->poller_ = poller;
  server->SetLive(true);
  server->SetServing(false);
  return server;
}

std::shared_ptr<grpc::Channel> RpcServer::InProcessChannel() {
  return main_.server->InProcessChannel(ChannelArguments());
}

void RpcServer::Shutdown(absl::Duration drain) {
  const auto deadline = absl::ToChronoTime(absl::Now() + drain);
  for (Port* port : {&main_, &health_}) {
    // The listener stops first, since gRPC does not close connections that it gets from now on.
    if (port->listener != nullptr) port->listener->Stop();
    if (port->server != nullptr) port->server->Shutdown(deadline);
  }
  if (poller_ != nullptr) std::exchange(poller_, nullptr)->Detach();
  main_.queue = nullptr;
  main_.server = nullptr;  // after the queue, which needs it to the end
  health_.server = nullptr;
}

grpc::ChannelArguments ChannelArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  SetKeepalive([&](const char* name, int value) { arguments.SetInt(name, value); });
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstBackoffMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxBackoffMs);
  // A name that does not resolve yet, such as that of a starting pod, is resolved again as often.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kMaxBackoffMs);
  // http_proxy is meant for other programs, and would send even loopback traffic through a proxy.
  if (std::getenv("grpc_proxy") == nullptr) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return arguments;
}

}  // namespace outrider
