// Traces: spans of requests, rounds and items, sent to a collector by OTLP over gRPC
// (https://opentelemetry.io/docs/specs/otlp/).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/obs/log.h"
#include "common/obs/trace_options.h"

namespace opentelemetry::proto::collector::trace::v1 {
class Span;
}

namespace outrider {

namespace otlp = ::opentelemetry::proto::collector::trace::v1;

// A span's place in a trace, as in W3C's header traceparent (https://www.w3.org/TR/trace-context/).
struct TraceContext {
  std::string trace_id;  // 16 bytes
  std::string span_id;   // 8 bytes
  bool sampled = false;  // whether spans are recorded
};

// nullopt if `traceparent` is not well formed.
std::optional<TraceContext> ParseTraceparent(absl::string_view traceparent);
std::string ToTraceparent(const TraceContext& context);

class Tracer;

// A timed operation, which is sent when it ends: by End or by its destructor. A span without a tracer, or one
// that is not sampled, records nothing, and its functions cost nothing. One thread at a time.
class Span {
 public:
  enum class Kind : uint8_t { kInternal, kServer };

  Span();
  Span(Span&&) noexcept;
  Span& operator=(Span&&) noexcept;
  ~Span();

  bool records() const { return span_ != nullptr; }
  // The parent for its child spans; empty if it records nothing.
  const std::string& traceparent() const { return traceparent_; }

  void SetName(absl::string_view name);
  void Set(std::initializer_list<LogField> attributes);
  void SetList(absl::string_view name, const std::vector<std::string>& values);
  // Marks the span as failed, unless `status` is OK. Sets error.type too.
  void SetStatus(const absl::Status& status);
  void End();

 private:
  friend class Tracer;

  Tracer* tracer_ = nullptr;
  std::unique_ptr<otlp::Span> span_;
  std::string traceparent_;
};

// Sends spans from a thread of its own. Drops spans that it cannot send, and logs how many.
// Thread-safe.
class Tracer {
 public:
  // NOT_FOUND or INVALID_ARGUMENT for a certificate that cannot be used.
  static absl::StatusOr<std::unique_ptr<Tracer>> Create(TraceOptions options);
  // Configured by environment variables. Null if traces are switched off, or if a variable cannot be used,
  // which is logged.
  static std::unique_ptr<Tracer> FromEnvironment(const std::string& service);
  ~Tracer();

  // Begins a span below `parent`, a traceparent. If that is malformed, the span begins a new trace.
  Span Start(Span::Kind kind, absl::string_view name, absl::string_view parent);

  // Waits until all spans are sent, for at most two seconds. Call before the process ends.
  void Flush() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class Span;
  struct Sender;

  Tracer(TraceOptions options, std::unique_ptr<Sender> sender);
  bool Samples(const std::optional<TraceContext>& parent, absl::string_view trace_id) const;
  void Add(std::unique_ptr<otlp::Span> span) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Send(std::deque<std::unique_ptr<otlp::Span>> spans);

  const TraceOptions options_;
  const std::unique_ptr<Sender> sender_;
  absl::Mutex mutex_;
  std::deque<std::unique_ptr<otlp::Span>> waiting_ ABSL_GUARDED_BY(mutex_);
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;  // since the last report
  bool flushes_ ABSL_GUARDED_BY(mutex_) = false;
  bool sends_ ABSL_GUARDED_BY(mutex_) = false;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time reported_ = absl::InfinitePast();  // used by thread_
  std::thread thread_;
};

// Tracer::Start for a tracer that may be null: then nothing is recorded.
inline Span StartSpan(Tracer* tracer, Span::Kind kind, absl::string_view name, absl::string_view parent) {
  return tracer == nullptr ? Span() : tracer->Start(kind, name, parent);
}

}  // namespace outrider
