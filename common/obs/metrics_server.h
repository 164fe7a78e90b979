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

namespace prometheus {
class Exposer;
}

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

// Owns the HTTP server. Thread-safe.
class MetricsServer {
 public:
  // `listen` is "HOST:PORT"; port 0 picks a free port. No two of `series` have a family in common.
  // UNAVAILABLE, naming the address, if it cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      const std::string& listen, std::vector<std::shared_ptr<prometheus::Collectable>> series);
  ~MetricsServer();

  // The bound address, with the port that was picked.
  const std::string& address() const { return address_; }

 private:
  MetricsServer() = default;

  std::string address_;
  std::vector<std::shared_ptr<prometheus::Collectable>> series_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

// Adds outrider_build_info{version}, which is always 1.
void AddBuildInfo(prometheus::Registry& registry, const std::string& version);

}  // namespace outrider
