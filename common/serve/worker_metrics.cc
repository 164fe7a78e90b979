#include "common/serve/worker_metrics.h"

#include "absl/strings/str_cat.h"
#include "common/obs/metric_families.h"

namespace outrider {

WorkerMetrics::WorkerMetrics(prometheus::Registry& registry, const std::string& name) {
  const auto gauge = [&](const char* metric, const char* help) {
    return AddGauge(registry, absl::StrCat(name, "_", metric), help);
  };
  const auto counter = [&](const char* metric, const char* help) {
    return AddCounter(registry, absl::StrCat(name, "_", metric), help);
  };
  const auto histogram = [&](const char* metric, const char* help,
                             const prometheus::Histogram::BucketBoundaries& buckets) {
    return AddHistogram(registry, absl::StrCat(name, "_", metric), help, buckets);
  };
  sequences_ = gauge("sequences", "Sequences that the server holds.");
  items_ = gauge("items_in_progress", "Items that are being worked on or wait for the engine.");
  blocks_used_ = gauge("kv_blocks_used", "Blocks of the KV cache in use.");
  blocks_cached_ = gauge("kv_blocks_cached",
                         "Blocks of the KV cache that no sequence uses, kept for prompts that begin alike.");
  blocks_free_ = gauge("kv_blocks_free", "Blocks of the KV cache that are free.");
  prefix_queried_ = counter("prefix_cache_queries_total", "Tokens that were looked for in the prefix cache.");
  prefix_hit_ = counter("prefix_cache_hits_total", "Of them, those found and not computed again.");
  preemptions_ = counter("preemptions_total", "Sequences that lost their cache because blocks ran out.");
  step_seconds_ =
      histogram("step_duration_seconds", "Duration of a forward pass, in seconds.",
                {1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 2e-1, 5e-1, 1, 2, 5});
  batch_sequences_ =
      histogram("batch_sequences", "Sequences in a forward pass.", {1, 2, 4, 8, 16, 32, 64, 128});
  batch_rows_ = histogram("batch_rows", "Rows (tokens) in a forward pass.",
                          {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024});
}

Worker::Hooks WorkerMetrics::Hooks() {
  return {[this](const StepStats& stats) {
            step_seconds_->Observe(absl::ToDoubleSeconds(stats.duration));
            batch_sequences_->Observe(stats.sequences);
            batch_rows_->Observe(stats.rows);
          },
          [this](const SequenceStoreCounts& counts) {
            sequences_->Set(counts.sequences);
            blocks_used_->Set(counts.blocks_used);
            blocks_cached_->Set(counts.blocks_cached);
            blocks_free_->Set(counts.blocks_free);
            const auto raise = [](prometheus::Counter* counter, int64_t to) {
              counter->Increment(static_cast<double>(to) - counter->Value());
            };
            raise(prefix_queried_, counts.prefix_queried);
            raise(prefix_hit_, counts.prefix_hit);
            raise(preemptions_, counts.preemptions);
          },
          [this](int more) { items_->Increment(more); }};
}

}  // namespace outrider
