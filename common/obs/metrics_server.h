// Serves a Prometheus registry on /metrics.
#pragma once

#include <prometheus/registry.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace prometheus {
class Exposer;
}

namespace outrider {

// Owns the HTTP server. Thread-safe.
class MetricsServer {
 public:
  // `listen` is "HOST:PORT"; port 0 picks a free port. UNAVAILABLE, naming the address, if it cannot be
  // bound.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      const std::string& listen, const std::shared_ptr<prometheus::Registry>& registry);
  ~MetricsServer();

  // The bound address, with the port that was picked.
  const std::string& address() const { return address_; }

 private:
  MetricsServer() = default;

  std::string address_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

// Adds outrider_build_info{version}, which is always 1.
void AddBuildInfo(prometheus::Registry& registry, const std::string& version);

}  // namespace outrider
