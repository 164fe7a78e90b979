// Prometheus metrics of the worker.
#pragma once

#include <prometheus/registry.h>

#include <string>

#include "common/engine/worker.h"

namespace outrider {

// Outlives the worker.
class WorkerMetrics {
 public:
  // Adds the metrics outrider_<name>_... to a registry, which outlives this.
  WorkerMetrics(prometheus::Registry& registry, const std::string& name);

  // The hooks that update the metrics, all but on_failure.
  Worker::Hooks Hooks();

 private:
  prometheus::Gauge* sequences_;
  prometheus::Gauge* items_;
  prometheus::Gauge* blocks_used_;
  prometheus::Gauge* blocks_cached_;
  prometheus::Gauge* blocks_free_;
  prometheus::Counter* prefix_queried_;
  prometheus::Counter* prefix_hit_;
  prometheus::Counter* preemptions_;
  prometheus::Histogram* step_seconds_;
  prometheus::Histogram* batch_sequences_;
  prometheus::Histogram* batch_rows_;
};

}  // namespace outrider
