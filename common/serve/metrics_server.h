// Serves Prometheus registries on /metrics.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/registry.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/net/http_server.h"

namespace outrider {

// A registry whose series carry one more label, model_name, once the model is known. Thread-safe.
class ModelNameLabel : public prometheus::Collectable {
 public:
  explicit ModelNameLabel(std::shared_ptr<prometheus::Collectable> registry)
      : registry_(std::move(registry)) {}

  void Set(const std::string& model_name);
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::shared_ptr<prometheus::Collectable> registry_;
  mutable absl::Mutex mutex_;
  std::string model_name_ ABSL_GUARDED_BY(mutex_);  // empty: not known yet
};

// GET /metrics over HTTP. No two of `series` have a family in common. Errors are those of HttpServer::Start.
absl::StatusOr<std::unique_ptr<HttpServer>> ServeMetrics(
    const std::string& listen, std::vector<std::shared_ptr<prometheus::Collectable>> series);

// outrider_log_lines_dropped_total: lines that nobody read in time.
class LogLines final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

// Adds outrider_build_info{version}, which is always 1.
void AddBuildInfo(prometheus::Registry& registry, const std::string& version);

}  // namespace outrider
