#include "common/obs/metrics_server.h"

#include <prometheus/exposer.h>

#include <exception>

#include "absl/strings/str_cat.h"
#include "common/obs/metric_families.h"

namespace outrider {

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& listen, const std::shared_ptr<prometheus::Registry>& registry) {
  std::unique_ptr<MetricsServer> server(new MetricsServer);
  // The exposer throws if the port is in use.
  try {
    server->exposer_ = std::make_unique<prometheus::Exposer>(listen, /*num_threads=*/1);
    server->address_ =
        absl::StrCat(listen.substr(0, listen.rfind(':')), ":", server->exposer_->GetListeningPorts().at(0));
  } catch (const std::exception&) {
    return absl::UnavailableError(absl::StrCat("--metrics-listen: cannot listen on ", listen,
                                               ": in use or not an address of this host"));
  }
  server->exposer_->RegisterCollectable(registry);
  return server;
}

MetricsServer::~MetricsServer() = default;

void AddBuildInfo(prometheus::Registry& registry, const std::string& version) {
  AddGauge(registry, "build_info", "1; which version this is.", {{"version", version}})->Set(1);
}

}  // namespace outrider
