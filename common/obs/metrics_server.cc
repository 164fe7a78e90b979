#include "common/obs/metrics_server.h"

#include <prometheus/exposer.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/obs/metric_families.h"

namespace outrider {

void ModelNameLabel::Set(const std::string& model_name) {
  absl::MutexLock lock(&mutex_);
  model_name_ = model_name;
}

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

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& listen, std::vector<std::shared_ptr<prometheus::Collectable>> series) {
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
  server->series_ = std::move(series);
  for (const auto& each : server->series_) server->exposer_->RegisterCollectable(each);
  return server;
}

MetricsServer::~MetricsServer() = default;

void AddBuildInfo(prometheus::Registry& registry, const std::string& version) {
  AddGauge(registry, "build_info", "1; which version this is.", {{"version", version}})->Set(1);
}

}  // namespace outrider
