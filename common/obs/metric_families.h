// Registers metrics by name, without the prefix "outrider_", and help text. A family that already exists is
// returned as it is.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <string>

namespace outrider {

inline constexpr char kMetricPrefix[] = "outrider_";

inline prometheus::Family<prometheus::Counter>& CounterFamily(prometheus::Registry& registry,
                                                              const std::string& name,
                                                              const std::string& help) {
  return prometheus::BuildCounter().Name(kMetricPrefix + name).Help(help).Register(registry);
}
inline prometheus::Family<prometheus::Histogram>& HistogramFamily(prometheus::Registry& registry,
                                                                  const std::string& name,
                                                                  const std::string& help) {
  return prometheus::BuildHistogram().Name(kMetricPrefix + name).Help(help).Register(registry);
}

// Families with a single metric.
inline prometheus::Counter* AddCounter(prometheus::Registry& registry, const std::string& name,
                                       const std::string& help) {
  return &CounterFamily(registry, name, help).Add({});
}
inline prometheus::Gauge* AddGauge(prometheus::Registry& registry, const std::string& name,
                                   const std::string& help, const prometheus::Labels& labels = {}) {
  return &prometheus::BuildGauge().Name(kMetricPrefix + name).Help(help).Register(registry).Add(labels);
}
inline prometheus::Histogram* AddHistogram(prometheus::Registry& registry, const std::string& name,
                                           const std::string& help,
                                           const prometheus::Histogram::BucketBoundaries& buckets) {
  return &HistogramFamily(registry, name, help).Add({}, buckets);
}

}  // namespace outrider
