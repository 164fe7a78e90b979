// The common part of every server's process: flags, addresses, metrics, signals, and an orderly end.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/registry.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/net/http_parser.h"
#include "common/net/http_server.h"
#include "common/rpc/server.h"
#include "common/serve/stall_watch.h"

// CLI11's header costs five seconds in each file that includes it.
namespace CLI {
class App;
}

namespace outrider {

// The flags that all services of a process share.
struct ProcessFlags {
  ServerOptions server;
  // Serve without TLS even where other hosts can connect. Metrics and health are always in plaintext.
  bool insecure = false;
  std::string metrics_listen;  // empty: none
  double busy_poll_seconds = 0;
  double drain_seconds = 20;
  std::string log_level = "info";
  std::string log_format = "auto";
};

// A registry whose series carry one more label, model_name, once the model is known. Thread-safe.
class ModelNameLabel : public prometheus::Collectable {
 public:
  explicit ModelNameLabel(std::shared_ptr<prometheus::Collectable> registry)
      : registry_(std::move(registry)) {}

  void Set(const std::string& model_name) {
    absl::MutexLock lock(&mutex_);
    model_name_ = model_name;
  }
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::shared_ptr<prometheus::Collectable> registry_;
  mutable absl::Mutex mutex_;
  std::string model_name_ ABSL_GUARDED_BY(mutex_);  // empty: not known yet
};

// gRPC services at an address of their own.
struct Endpoint {
  std::string flag = "--listen";  // the flag that gave `listen`
  std::string listen;             // see RpcServer::Start
  std::vector<grpc::Service*> services = {};
  std::shared_ptr<prometheus::Registry> registry;  // its part of /metrics; no other has the same names
  QueuePoller* poller = nullptr;                   // see RpcServer::Start
};

// Defines `flag` for Endpoint::listen.
void DefineAddressFlag(CLI::App& app, const std::string& flag, std::string& listen);
// Defines --metrics-listen, --health-listen, --busy-poll and the flags of security.
void DefineListenFlags(CLI::App& app, ProcessFlags& flags);
// Defines --drain, with help text `drain`, --log-level and --log-format.
void DefineDrainAndLogFlags(CLI::App& app, const std::string& drain, ProcessFlags& flags);

// Parses the command line, starts the log of `service`, and calls `serve`, which returns only if the process
// cannot start, with the reason. Before that, blocks SIGINT and SIGTERM in all threads, so that ServerProcess
// can wait for them. Returns the exit code, after one line on stderr unless that is 0.
int RunProcess(CLI::App& app, int argc, char** argv, const std::string& service, const ProcessFlags& flags,
               const std::function<absl::Status()>& serve);

inline constexpr char kCannotStart[] = "cannot start";  // the log event for a process that cannot start
// Ends the process, from any thread. If several threads call this, only the first writes its log line. The
// exit code is 0 if `reason` is OK, else 1, and then the line is `event`.
[[noreturn]] void EndProcess(const absl::Status& reason, absl::string_view event = "the model failed");

// Calls `work`. Until `work` returns, calls `on_signal` on another thread for each SIGINT and SIGTERM. For
// `serve` of RunProcess, but not at the same time as AwaitEnd.
void RunUnderSignals(const std::function<void()>& work, const std::function<void()>& on_signal);

// The gRPC services and the metrics of a process, from its start to its end. Each address has the health
// service, which reports on the whole process. Thread-safe, except AwaitEnd and Exit, which are for the main
// thread.
class ServerProcess {
 public:
  // Starts to listen. The first endpoint also serves --health-listen. UNAVAILABLE, naming the address, if one
  // cannot be bound; INVALID_ARGUMENT for one that needs --insecure; see also RpcServer.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(const ProcessFlags& flags,
                                                              const std::vector<Endpoint>& endpoints);

  RpcServer& rpc(size_t endpoint = 0) { return *rpcs_[endpoint]; }
  // The bound address of /metrics; empty if there is none.
  std::string metrics_address() const { return metrics_ == nullptr ? "" : metrics_->address(); }

  // The answer to GET /metrics.
  HttpResponse Metrics() const;

  // Sets the label model_name of an endpoint's metrics. A coordinator's is that of its target.
  void SetModelName(const std::string& model_name, size_t endpoint = 0) {
    series_[endpoint]->Set(model_name);
    if (endpoint == 0) series_.back()->Set(model_name);
  }

  // Sets the health of service "", false at first. After the signal to end it stays false.
  void SetServing(bool serving) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    ready_ = serving;
    ReportHealth();
  }
  bool serving() const { return serving_; }

  // For StallWatches: a thread hangs, or one that hung goes on. While any hangs, or the process cannot
  // connect to a port of its own, health reports that neither service "live" nor "" serves.
  void ReportStall(bool hangs) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    stalls_ += hangs ? 1 : -1;
    ReportHealth();
  }

  // Waits for SIGINT or SIGTERM. Calls `refuse_new` before the log says that the process drains, since
  // readers of the log may rely on it.
  void AwaitEnd(const std::function<void()>& refuse_new = [] {});
  // Shuts down the gRPC servers, whose calls get `patience` to end by themselves, and then ends the process
  // with exit code 0. With zero patience, the connections end with the process.
  [[noreturn]] void Exit(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit ServerProcess(double drain_seconds) : drain_seconds_(drain_seconds) {}

  void ReportHealth() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const double drain_seconds_;
  std::vector<std::unique_ptr<RpcServer>> rpcs_;
  std::vector<std::shared_ptr<ModelNameLabel>> series_;  // one of each endpoint, then one of the process
  std::unique_ptr<HttpServer> metrics_;
  std::vector<std::unique_ptr<StallWatch>> watches_;  // of the ports
  std::atomic<bool> serving_ = false;                 // what health reports
  absl::Mutex mutex_;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  int stalls_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace outrider
