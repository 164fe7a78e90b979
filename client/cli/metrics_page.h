// The values of a /metrics endpoint at one time, and their change between two times.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace outrider {

using MetricLabels = std::map<std::string, std::string>;

// One page in Prometheus' text format.
class MetricsPage {
 public:
  // Skips lines that are not samples.
  static MetricsPage Parse(std::string_view text);

  // Sum over the series of this name that have these labels, perhaps among others; 0 if there is none.
  double Sum(std::string_view name, const MetricLabels& labels = {}) const;

  // The sum over the series of this name for each value of a label, such as position -> tokens.
  std::map<std::string, double> By(std::string_view name, const std::string& label) const;

 private:
  struct Sample {
    std::string name;
    MetricLabels labels;
    double value;
  };
  std::vector<Sample> samples_;
};

// GET http://ADDRESS/metrics. UNAVAILABLE if nothing answers within a second.
absl::StatusOr<MetricsPage> FetchMetrics(const std::string& address);

// The change from one page to a later one of the same process.
struct MetricsChange {
  const MetricsPage& before;
  const MetricsPage& after;

  double Increase(std::string_view name, const MetricLabels& labels = {}) const {
    return after.Sum(name, labels) - before.Sum(name, labels);
  }
  // The increase of one series over that of another; nullopt if the latter did not increase.
  std::optional<double> Ratio(std::string_view numerator, std::string_view denominator,
                              const MetricLabels& labels = {}) const;
  std::optional<double> Mean(const std::string& histogram, const MetricLabels& labels = {}) const {
    return Ratio(histogram + "_sum", histogram + "_count", labels);
  }
  // The q-quantile, by linear interpolation within a bucket, like Prometheus' histogram_quantile.
  std::optional<double> Quantile(const std::string& histogram, double q) const;
};

}  // namespace outrider
