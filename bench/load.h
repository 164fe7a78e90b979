// Puts load on a coordinator, and computes percentiles of the measurements.
#pragma once

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/run_benchmark.h"
#include "client/sdk/client.h"

namespace outrider {

// The number and length of the slices that each compared mode runs, in turn with the others.
struct SliceFlags {
  int turns = 0;
  double seconds = 0;
};

inline void AddSliceFlags(CLI::App& app, SliceFlags& slices) {
  AddNumber(app, "--turns", slices.turns, "slices per mode", 1, 1000);
  AddNumber(app, "--slice", slices.seconds, "seconds per slice", 0.1, 1e3);
}

// Streams that each send the next request once the last one is answered.
struct ClosedLoop {
  int streams = 1;
  absl::Duration duration;
  // The request with this index on a stream.
  std::function<v1::GenerateRequest(int stream, int index)> request;
  // Called for each chunk, on its stream's thread, with the time at which its request was sent.
  std::function<void(int stream, absl::Time sent, const v1::GenerateResponse& chunk)> on_chunk;
};

// Runs for `duration`, then cancels what is in flight. Returns the first error of a stream, if any.
inline absl::Status RunClosedLoop(const Client& client, const ClosedLoop& load) {
  const absl::Time end = absl::Now() + load.duration;
  std::vector<Cancellation> cancellations(static_cast<size_t>(load.streams));
  std::vector<absl::Status> errors(cancellations.size());
  {
    std::vector<std::jthread> threads;
    for (int stream = 0; stream < load.streams; ++stream) {
      threads.emplace_back([&, stream] {
        for (int i = 0; absl::Now() < end; ++i) {
          const absl::Time sent = absl::Now();
          const auto on_chunk = [&](const v1::GenerateResponse& chunk) {
            load.on_chunk(stream, sent, chunk);
          };
          auto answer = client.Generate(load.request(stream, i), on_chunk, &cancellations[stream]);
          if (!answer.ok() && !absl::IsCancelled(answer.status())) errors[stream] = answer.status();
          if (!answer.ok()) return;
        }
      });
    }
    absl::SleepFor(end - absl::Now());
    for (Cancellation& cancellation : cancellations) cancellation.Cancel();
  }
  for (const absl::Status& error : errors) {
    if (!error.ok()) return error;
  }
  return absl::OkStatus();
}

// The value below which `share` of the values lie; 0 if there are none. Reorders `values`.
inline double Percentile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const auto rank =
      std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + rank, values.end());
  return values[rank];
}

// Null if there are no values.
inline nlohmann::ordered_json Percentiles(std::vector<double> values) {
  if (values.empty()) return nullptr;
  return {
      {"p50", Percentile(values, .5)}, {"p95", Percentile(values, .95)}, {"p99", Percentile(values, .99)}};
}

}  // namespace outrider
