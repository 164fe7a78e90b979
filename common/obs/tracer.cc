#include "common/obs/tracer.h"

#include <grpcpp/grpcpp.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/credentials.h"
#include "common/rpc/fresh_bits.h"
#include "common/spec/status.h"
#include "opentelemetry/trace_service.grpc.pb.h"

namespace outrider {
namespace {

constexpr absl::Duration kFlush = absl::Seconds(2);
constexpr absl::Duration kBetweenReports = absl::Minutes(1);  // of lost spans
// Retries as OTLP requires: a collector that restarts or asks for a retry gets the same spans again.
constexpr char kRetries[] = R"({"methodConfig": [{
  "name": [{"service": "opentelemetry.proto.collector.trace.v1.TraceService"}],
  "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.5s", "maxBackoff": "5s", "backoffMultiplier": 2,
                  "retryableStatusCodes": ["CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE",
                                           "DATA_LOSS"]}}]})";

uint64_t Now() { return static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())); }

// Adds an attribute to a span or a process.
template <typename Described>
otlp::AnyValue* AddAttribute(absl::string_view name, Described& described) {
  otlp::KeyValue& attribute = *described.add_attributes();
  attribute.set_key(std::string(name));
  return attribute.mutable_value();
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(absl::string_view traceparent) {
  constexpr absl::string_view kShape = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
  if (traceparent.size() != kShape.size() || absl::StartsWith(traceparent, "ff")) return std::nullopt;
  for (size_t i = 0; i < traceparent.size(); ++i) {
    const char c = traceparent[i];
    if (kShape[i] == 'x' ? !absl::ascii_isdigit(c) && (c < 'a' || c > 'f') : c != '-') return std::nullopt;
  }
  TraceContext context{.trace_id = absl::HexStringToBytes(traceparent.substr(3, 32)),
                       .span_id = absl::HexStringToBytes(traceparent.substr(36, 16)),
                       .sampled = (absl::HexStringToBytes(traceparent.substr(53, 2))[0] & 1) != 0};
  const auto is_zero = [](const std::string& id) { return id.find_first_not_of('\0') == std::string::npos; };
  if (is_zero(context.trace_id) || is_zero(context.span_id)) return std::nullopt;
  return context;
}

std::string ToTraceparent(const TraceContext& context) {
  return absl::StrCat("00-", absl::BytesToHexString(context.trace_id), "-",
                      absl::BytesToHexString(context.span_id), context.sampled ? "-01" : "-00");
}

Span::Span() = default;
Span::Span(Span&& other) noexcept = default;
Span& Span::operator=(Span&& other) noexcept {
  End();
  tracer_ = other.tracer_;
  span_ = std::move(other.span_);
  traceparent_ = std::move(other.traceparent_);
  return *this;
}
Span::~Span() { End(); }

void Span::SetName(absl::string_view name) {
  if (records()) span_->set_name(std::string(name));
}

void Span::Set(std::initializer_list<LogField> attributes) {
  if (!records()) return;
  for (const LogField& field : attributes) {
    otlp::AnyValue& value = *AddAttribute(field.name, *span_);
    if (const auto* text = std::get_if<std::string>(&field.value)) value.set_string_value(*text);
    if (const auto* number = std::get_if<double>(&field.value)) value.set_double_value(*number);
    if (const auto* integer = std::get_if<int64_t>(&field.value)) value.set_int_value(*integer);
    if (const auto* flag = std::get_if<bool>(&field.value)) value.set_bool_value(*flag);
  }
}

void Span::SetList(absl::string_view name, const std::vector<std::string>& values) {
  if (!records()) return;
  otlp::ArrayValue& array = *AddAttribute(name, *span_)->mutable_array_value();
  for (const std::string& value : values) array.add_values()->set_string_value(value);
}

void Span::SetStatus(const absl::Status& status) {
  if (!records() || status.ok()) return;
  span_->mutable_status()->set_code(otlp::Span::Status::CODE_ERROR);
  span_->mutable_status()->set_message(std::string(status.message()));
  Set({{"error.type", absl::StatusCodeToString(status.code())}});
}

void Span::End() {
  if (!records()) return;
  span_->set_end_time_unix_nano(Now());
  tracer_->Add(std::move(span_));
}

struct Tracer::Sender {
  std::unique_ptr<otlp::TraceService::Stub> stub;
  otlp::ResourceSpans process;  // without spans
};

absl::StatusOr<std::unique_ptr<Tracer>> Tracer::Create(TraceOptions options) {
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (options.tls && options.certificate.empty() && options.client_certificate.empty()) {
    credentials = grpc::SslCredentials({});  // trusts the system's CAs
  } else if (options.tls) {
    credentials = OUTRIDER_TRY(MakeChannelCredentials(
        {.ca = options.certificate, .cert = options.client_certificate, .key = options.client_key}));
  }
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(kRetries);
  auto sender = std::make_unique<Sender>();
  sender->stub =
      otlp::TraceService::NewStub(grpc::CreateCustomChannel(options.endpoint, credentials, arguments));
  for (const auto& [key, value] : options.resource) {
    AddAttribute(key, *sender->process.mutable_resource())->set_string_value(value);
  }
  sender->process.add_scope_spans()->mutable_scope()->set_name("outrider");
  return std::unique_ptr<Tracer>(new Tracer(std::move(options), std::move(sender)));
}

std::unique_ptr<Tracer> Tracer::FromEnvironment(const std::string& service) {
  const auto variable = [](const std::string& name) {
    const char* const value = std::getenv(name.c_str());
    return std::string(value == nullptr ? "" : value);
  };
  const auto start = [&]() -> absl::StatusOr<std::unique_ptr<Tracer>> {
    std::optional<TraceOptions> options = OUTRIDER_TRY(ReadTraceOptions(service, variable));
    if (!options) return nullptr;
    LogInfo("traces", {{"endpoint", options->endpoint}, {"tls", options->tls}});
    return Create(*std::move(options));
  };
  absl::StatusOr<std::unique_ptr<Tracer>> tracer = start();
  if (tracer.ok()) return *std::move(tracer);
  // The specification asks programs not to fail: the variables may be set for everything in a cluster.
  LogWarning("no traces", {{"error", tracer.status().message()}});
  return nullptr;
}

Tracer::Tracer(TraceOptions options, std::unique_ptr<Sender> sender)
    : options_(std::move(options)), sender_(std::move(sender)), thread_([this] { Run(); }) {}

Tracer::~Tracer() {
  {
    absl::MutexLock lock(&mutex_);
    ends_ = true;
  }
  thread_.join();
}

bool Tracer::Samples(const std::optional<TraceContext>& parent, absl::string_view trace_id) const {
  if (parent && options_.follows_parent) return parent->sampled;
  if (options_.roots != TraceOptions::Roots::kRatio) return options_.roots == TraceOptions::Roots::kAll;
  // All processes decide alike on a trace: by the last 56 bits of its id, which W3C wants to be random.
  uint64_t bits = 0;
  for (const char byte : trace_id.substr(9)) bits = bits << 8 | static_cast<uint8_t>(byte);
  return static_cast<double>(bits) < options_.ratio * static_cast<double>(uint64_t{1} << 56);
}

Span Tracer::Start(Span::Kind kind, absl::string_view name, absl::string_view parent) {
  Span span;
  const std::optional<TraceContext> above = ParseTraceparent(parent);
  const std::string trace_id = above ? above->trace_id : FreshBytes(16);
  if (!Samples(above, trace_id)) return span;
  const TraceContext context{.trace_id = trace_id, .span_id = FreshBytes(8), .sampled = true};
  span.tracer_ = this;
  span.traceparent_ = ToTraceparent(context);
  span.span_ = std::make_unique<otlp::Span>();
  span.span_->set_trace_id(context.trace_id);
  span.span_->set_span_id(context.span_id);
  if (above) span.span_->set_parent_span_id(above->span_id);
  span.span_->set_name(std::string(name));
  span.span_->set_kind(kind == Span::Kind::kServer ? otlp::Span::KIND_SERVER : otlp::Span::KIND_INTERNAL);
  span.span_->set_start_time_unix_nano(Now());
  span.span_->set_flags(1);
  return span;
}

void Tracer::Add(std::unique_ptr<otlp::Span> span) {
  absl::MutexLock lock(&mutex_);
  if (waiting_.size() >= options_.max_queue) {
    ++dropped_;
    return;
  }
  waiting_.push_back(std::move(span));
}

void Tracer::Flush() {
  absl::MutexLock lock(&mutex_);
  flushes_ = true;
  const auto is_sent = [](Tracer* tracer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tracer->mutex_) {
    return tracer->waiting_.empty() && !tracer->sends_;
  };
  mutex_.AwaitWithTimeout(absl::Condition(+is_sent, this), kFlush);
  flushes_ = false;
}

void Tracer::Run() {
  const auto is_urgent = [](Tracer* tracer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tracer->mutex_) {
    return tracer->ends_ || tracer->waiting_.size() >= tracer->options_.max_batch ||
           (tracer->flushes_ && !tracer->waiting_.empty());
  };
  bool ends = false;
  while (!ends) {
    std::deque<std::unique_ptr<otlp::Span>> batch;
    {
      absl::MutexLock lock(&mutex_);
      sends_ = false;
      mutex_.AwaitWithTimeout(absl::Condition(+is_urgent, this), options_.delay);
      ends = ends_;
      while (!waiting_.empty() && batch.size() < options_.max_batch) {
        batch.push_back(std::move(waiting_.front()));
        waiting_.pop_front();
      }
      sends_ = !batch.empty();
    }
    if (!batch.empty()) Send(std::move(batch));
  }
}

void Tracer::Send(std::deque<std::unique_ptr<otlp::Span>> spans) {
  otlp::ExportRequest request;
  otlp::ExportResponse response;
  *request.add_resource_spans() = sender_->process;
  auto& sent = *request.mutable_resource_spans(0)->mutable_scope_spans(0)->mutable_spans();
  for (std::unique_ptr<otlp::Span>& span : spans) sent.AddAllocated(span.release());
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + options_.timeout));
  if (options_.gzip) context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  for (const auto& [key, value] : options_.headers) context.AddMetadata(key, value);
  const grpc::Status status = sender_->stub->Export(&context, request, &response);
  const auto& partial = response.partial_success();
  absl::MutexLock lock(&mutex_);
  dropped_ += status.ok() ? partial.rejected_spans() : static_cast<int64_t>(spans.size());
  if (dropped_ == 0 || absl::Now() - reported_ < kBetweenReports) return;
  reported_ = absl::Now();
  const std::string error = status.ok() ? partial.error_message() : status.error_message();
  LogWarning("spans are lost", {{"spans", dropped_}, {"endpoint", options_.endpoint}, {"error", error}});
  dropped_ = 0;
}

}  // namespace outrider
