// The destination and the sampling of traces, read from OpenTelemetry's environment variables
// (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace outrider {

// docs/operations.md lists the variables that are read.
struct TraceOptions {
  enum class Roots : uint8_t { kAll, kNone, kRatio };

  std::string endpoint = {};  // HOST:PORT
  bool tls = false;
  std::string certificate = {}, client_certificate = {}, client_key = {};  // PEM files
  std::vector<std::pair<std::string, std::string>> headers = {};
  bool gzip = false;
  absl::Duration timeout = absl::Seconds(10);
  std::vector<std::pair<std::string, std::string>> resource = {};  // attributes of the process
  Roots roots = Roots::kAll;
  double ratio = 1;                         // share of the traces that are sampled, for kRatio
  bool follows_parent = true;               // a span is sampled if its parent is
  absl::Duration delay = absl::Seconds(5);  // longest wait until a span is sent
  size_t max_queue = 2048;                  // spans that may wait; more are dropped
  size_t max_batch = 512;                   // spans in one message
};

// nullopt if no endpoint is named or traces are switched off. INVALID_ARGUMENT, naming the variable, for a
// value that cannot be used. `variable` returns a variable's value, empty if it is not set.
absl::StatusOr<std::optional<TraceOptions>> ReadTraceOptions(
    const std::string& service, const std::function<std::string(const std::string&)>& variable);

}  // namespace outrider
