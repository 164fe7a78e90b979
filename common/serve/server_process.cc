#include "common/serve/server_process.h"

#include <prometheus/text_serializer.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <iterator>
#include <optional>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/obs/flags.h"
#include "common/obs/log.h"
#include "common/obs/metric_families.h"
#include "common/obs/process_metrics.h"
#include "common/obs/version.h"
#include "common/rpc/address.h"
#include "common/rpc/queue_poller.h"
#include "common/rpc/security_flags.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

// How long a port may take no connection before the process counts as dead.
constexpr absl::Duration kPortTimeout = absl::Seconds(16);

absl::Status CheckAddress(absl::string_view flag, absl::string_view listen) {
  const absl::Status status = CheckListenAddress(listen);
  return status.ok() ? status : Invalid(flag, ": ", status.message());
}

// The most connections to /metrics. Scrapers are few.
constexpr int kMaxScrapers = 64;

// Metrics of the whole process: ProcessMetrics, and outrider_log_lines_dropped_total, the log lines that
// nobody read in time or that could not be written.
class ProcessCollector final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    prometheus::ClientMetric lines;
    lines.counter.value = static_cast<double>(DroppedLogLines());
    std::vector<prometheus::MetricFamily> families = ProcessMetrics().Collect();
    families.push_back({absl::StrCat(kMetricPrefix, "log_lines_dropped_total"),
                        "Lines of the log that were dropped: nobody read it, or it could not be written.",
                        prometheus::MetricType::Counter,
                        {lines}});
    return families;
  }
};

// GET /metrics over HTTP. Errors are those of HttpServer::Start.
absl::StatusOr<std::unique_ptr<HttpServer>> ServeMetrics(const std::string& listen,
                                                         std::function<HttpResponse()> metrics) {
  const auto refuse = [](int status, const std::string& message) {
    HttpResponse response;
    response.status = status;
    response.headers = {{"Content-Type", "text/plain; charset=utf-8"}};
    response.body = absl::StrCat(message, "\n");
    return response;
  };
  const auto check = [refuse](const HttpRequest& head) -> std::optional<HttpResponse> {
    if (head.path != "/metrics")
      return refuse(404, absl::StrCat("nothing but /metrics is here, not ", head.path));
    if (head.method == "GET" || head.method == "HEAD") return std::nullopt;
    HttpResponse refusal =
        refuse(405, absl::StrCat("/metrics does not answer ", head.method, " but GET, HEAD"));
    refusal.headers.emplace_back("Allow", "GET, HEAD");
    return refusal;
  };
  const auto answer =
      [metrics = std::move(metrics)](const HttpRequest& /*request*/) -> asio::awaitable<HttpResponse> {
    co_return metrics();
  };
  return HttpServer::Start(
      "--metrics-listen", listen, /*tls=*/nullptr, {.max_connections = kMaxScrapers},
      {.check = check,
       .answer = answer,
       .refuse = [refuse](int status, const std::string& message, const std::string& /*path*/) {
         return refuse(status, message);
       }});
}

sigset_t EndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

std::vector<prometheus::MetricFamily> ModelNameLabel::Collect() const {
  std::vector<prometheus::MetricFamily> families = registry_->Collect();
  absl::MutexLock lock(&mutex_);
  if (model_name_.empty()) return families;
  for (prometheus::MetricFamily& family : families) {
    for (prometheus::ClientMetric& metric : family.metric)
      metric.label.push_back({"model_name", model_name_});
  }
  return families;
}

void DefineAddressFlag(CLI::App& app, const std::string& flag, std::string& listen) {
  app.option_defaults()->group("Addresses");
  app.add_option(flag, listen, "gRPC address, HOST:PORT or unix:PATH; port 0 picks one")
      ->capture_default_str();
}

void DefineListenFlags(CLI::App& app, ProcessFlags& flags) {
  ServerSecurity& security = flags.server.security;
  app.add_option("--metrics-listen", flags.metrics_listen, "address of /metrics; empty: none")
      ->capture_default_str();
  app.add_option("--health-listen", flags.server.health_listen,
                 "a second address with grpc.health.v1 only, without TLS; empty: none");
  app.add_option("--busy-poll", flags.busy_poll_seconds,
                 "seconds that the thread which acts on messages looks for the next one before it sleeps; up "
                 "to 0.001, for a process with a CPU to spare; 0: it sleeps at once")
      ->check(CLI::Range(0.0, 0.001))
      ->capture_default_str();
  app.option_defaults()->group("TLS and tokens");
  DefineServerSecurityFlags(app, security);
  app.add_flag("--insecure", flags.insecure,
               "serve without TLS also where other hosts can connect, to everybody who does");
}

void DefineDrainAndLogFlags(CLI::App& app, const std::string& drain, ProcessFlags& flags) {
  app.option_defaults()->group("Ending and log");
  app.add_option("--drain", flags.drain_seconds, drain)->check(CLI::Range(0.0, 1e6))->capture_default_str();
  app.add_option("--log-level", flags.log_level, "debug, info, warning or error")->capture_default_str();
  app.add_option("--log-format", flags.log_format, "auto, json or text")->capture_default_str();
}

HttpResponse ServerProcess::Metrics() const {
  std::vector<prometheus::MetricFamily> families;  // no two of the series share a name
  for (const auto& each : series_) {
    std::vector<prometheus::MetricFamily> its = each->Collect();
    std::move(its.begin(), its.end(), std::back_inserter(families));
  }
  HttpResponse response;
  response.headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}};
  response.body = prometheus::TextSerializer().Serialize(families);
  return response;
}

int RunProcess(CLI::App& app, int argc, char** argv, const std::string& service, const ProcessFlags& flags,
               const std::function<absl::Status()>& serve) {
  if (const std::optional<int> end = ParseCommandLine(app, argc, argv)) return *end;
  // Blocks the signals before any thread exists, so that all threads leave them to AwaitEnd.
  const sigset_t signals = EndSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  if (absl::Status status = InitLog(service, flags.log_level, flags.log_format); !status.ok()) {
    std::cerr << status.message() << "\n";
    return kUsageError;
  }
  // The log may have no reader: a write to a closed pipe must fail, not end the process.
  signal(SIGPIPE, SIG_IGN);
  // Raises the limit on descriptors from the shell's default to the hard limit.
  if (rlimit limit{}; getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  GiveQueuesTheirConnections();
  std::string error;
  try {
    error = std::string(serve().message());
  } catch (const std::exception& exception) {  // out of threads or memory
    error = exception.what();
  }
  EndProcess(absl::InternalError(error), kCannotStart);
}

void EndProcess(const absl::Status& reason, absl::string_view event) {
  static absl::Mutex mutex;
  mutex.Lock();  // never unlocked
  if (reason.ok()) {
    LogInfo("stopped");
  } else {
    LogError(event, {{"error", std::string(reason.message())}});
  }
  FlushLog();
  std::quick_exit(reason.ok() ? 0 : 1);
}

void RunUnderSignals(const std::function<void()>& work, const std::function<void()>& on_signal) {
  constexpr int kEnough = SIGUSR1;
  sigset_t signals = EndSignals(), before;
  sigaddset(&signals, kEnough);
  pthread_sigmask(SIG_BLOCK, &signals, &before);
  std::atomic<bool> done = false;
  std::thread waits([&] {
    int signal = 0;
    while (sigwait(&signals, &signal) != 0 || !done) {
      if (signal != kEnough) on_signal();
    }
  });
  const absl::Cleanup stop = [&] {
    done = true;
    pthread_kill(waits.native_handle(), kEnough);
    waits.join();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  };
  work();
}

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(const ProcessFlags& flags,
                                                                    const std::vector<Endpoint>& endpoints) {
  const bool encrypts = !flags.server.security.cert.empty();
  for (const Endpoint& endpoint : endpoints) {
    OUTRIDER_TRY(CheckAddress(endpoint.flag, endpoint.listen));
    OUTRIDER_TRY(CheckExposure(endpoint.flag, endpoint.listen, encrypts, flags.insecure));
  }
  if (const std::string& health = flags.server.health_listen; !health.empty()) {
    OUTRIDER_TRY(CheckAddress("--health-listen", health));
  }
  std::unique_ptr<ServerProcess> process(new ServerProcess(flags.drain_seconds));
  AddGauge(*endpoints.front().registry, "build_info", "1; which version this is.",
           {{"version", std::string(kVersion)}})
      ->Set(1);
  ServerOptions options = flags.server;
  options.security.on_refused = [](int calls) {
    LogWarning("calls refused for want of a known bearer token", {{"calls", calls}});
  };
  options.on_turned_away = [](const std::string& address, int connections) {
    LogWarning("too many connections", {{"port", address}, {"turned_away", connections}});
  };
  for (const Endpoint& endpoint : endpoints) {
    auto rpc = OUTRIDER_TRY(RpcServer::Start(endpoint.listen, options, endpoint.services, endpoint.poller));
    process->rpcs_.push_back(std::move(rpc));
    process->series_.push_back(std::make_shared<ModelNameLabel>(endpoint.registry));
    options.health_listen.clear();
  }
  process->series_.push_back(std::make_shared<ModelNameLabel>(std::make_shared<ProcessCollector>()));
  for (const std::unique_ptr<RpcServer>& rpc : process->rpcs_) {
    const std::string address = rpc->address();
    if (absl::StartsWith(address, "unix:")) continue;
    process->watches_.push_back(std::make_unique<StallWatch>(
        absl::StrCat("port ", address), kPortTimeout, [address] { return !AcceptsConnections(address); },
        [process = process.get()](bool closed) { process->ReportStall(closed); }));
  }
  if (!flags.metrics_listen.empty()) {
    process->metrics_ =
        OUTRIDER_TRY(ServeMetrics(flags.metrics_listen, [&process = *process] { return process.Metrics(); }));
  }
  return process;
}

void ServerProcess::ReportHealth() {
  if (ended_) return;
  const bool live = stalls_ == 0;
  serving_ = ready_ && live && !ending_;
  for (const std::unique_ptr<RpcServer>& rpc : rpcs_) {
    rpc->SetServing(serving_);
    rpc->SetLive(live);
  }
}

void ServerProcess::AwaitEnd(const std::function<void()>& refuse_new) {
  const sigset_t signals = EndSignals();
  int signal = 0;
  sigwait(&signals, &signal);
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
    ReportHealth();
  }
  refuse_new();
  LogInfo("draining", {{"signal", std::string(strsignal(signal))}, {"drain_seconds", drain_seconds_}});
}

void ServerProcess::Exit(absl::Duration patience) {
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }
  if (patience > absl::ZeroDuration()) {
    // Runs on a thread of its own, since gRPC waits for every call to end, and the process must not.
    absl::Notification ended;
    std::thread([this, &ended, patience] {
      const absl::Time deadline = absl::Now() + patience;
      for (const std::unique_ptr<RpcServer>& rpc : rpcs_) {
        rpc->Shutdown(std::max(deadline - absl::Now(), absl::ZeroDuration()));
      }
      ended.Notify();
    }).detach();
    ended.WaitForNotificationWithTimeout(patience + absl::Seconds(1));
  }
  // Nothing that matters is still running.
  EndProcess(absl::OkStatus());
}

}  // namespace outrider
