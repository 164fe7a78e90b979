#include "common/obs/tracer.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "opentelemetry/trace_service.grpc.pb.h"

namespace outrider {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr char kParent[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

using Variables = std::map<std::string, std::string>;

absl::StatusOr<std::optional<TraceOptions>> Read(Variables variables) {
  variables.try_emplace("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");
  return ReadTraceOptions("service", [&](const std::string& name) { return variables[name]; });
}

std::string ErrorOf(const Variables& variables) { return std::string(Read(variables).status().message()); }

class Collector final : public otlp::TraceService::Service {
 public:
  grpc::Status Export(grpc::ServerContext*, const otlp::ExportRequest* request,
                      otlp::ExportResponse*) override {
    absl::MutexLock lock(&mutex_);
    for (const auto& process : request->resource_spans()) {
      for (const auto& scope : process.scope_spans()) {
        for (const auto& span : scope.spans()) ids_.insert(span.span_id());
      }
    }
    return grpc::Status::OK;
  }
  std::set<std::string> ids() {
    absl::MutexLock lock(&mutex_);
    return ids_;
  }

 private:
  absl::Mutex mutex_;
  std::set<std::string> ids_ ABSL_GUARDED_BY(mutex_);
};

TEST(TraceOptions, AreThoseOfTheSpecification) {
  const TraceOptions options = **Read({{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces:443/"},
                                       {"OTEL_EXPORTER_OTLP_TIMEOUT", "1500"},
                                       {"OTEL_EXPORTER_OTLP_HEADERS", "Api-Key=a%3Db, x = y"},
                                       {"OTEL_RESOURCE_ATTRIBUTES", "service.name=other,zone=a"},
                                       {"OTEL_TRACES_SAMPLER", "parentbased_traceidratio"},
                                       {"OTEL_TRACES_SAMPLER_ARG", "0.25"},
                                       {"OTEL_BSP_MAX_QUEUE_SIZE", "7"}});
  EXPECT_EQ(options.endpoint, "traces:443");
  EXPECT_TRUE(options.tls && options.follows_parent);
  EXPECT_EQ(options.timeout, absl::Milliseconds(1500));
  EXPECT_THAT(options.headers, Contains(Pair("api-key", "a=b")));
  EXPECT_THAT(options.headers, Contains(Pair("x", "y")));
  EXPECT_THAT(options.resource, Contains(Pair("service.name", "other")));
  EXPECT_EQ(options.ratio, 0.25);
  EXPECT_EQ(options.max_queue, 7);
}

TEST(TraceOptions, AreNoneWithoutAnEndpointOrWhereTheyAreSwitchedOff) {
  EXPECT_FALSE(Read({{"OTEL_EXPORTER_OTLP_ENDPOINT", ""}})->has_value());
  EXPECT_FALSE(Read({{"OTEL_SDK_DISABLED", "true"}})->has_value());
  EXPECT_FALSE(Read({{"OTEL_TRACES_EXPORTER", "none"}})->has_value());
}

TEST(TraceOptions, NameTheVariableThatCannotBeUsed) {
  EXPECT_EQ(ErrorOf({{"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "soon"}}),
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT: soon; allowed: 1 to 1000000000");
  EXPECT_EQ(ErrorOf({{"OTEL_TRACES_EXPORTER", "zipkin"}}),
            "OTEL_TRACES_EXPORTER: zipkin; allowed: otlp, none");
  EXPECT_EQ(ErrorOf({{"OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"}}),
            "OTEL_EXPORTER_OTLP_COMPRESSION: zstd; allowed: gzip, none");
  EXPECT_THAT(ErrorOf({{"OTEL_EXPORTER_OTLP_HEADERS", "token"}}), HasSubstr("OTEL_EXPORTER_OTLP_HEADERS"));
  EXPECT_THAT(ErrorOf({{"OTEL_TRACES_SAMPLER", "some"}}), HasSubstr("traceidratio"));
}

class TracerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Tracer> MakeTracer(TraceOptions options = {}) {
    options.endpoint = absl::StrCat("127.0.0.1:", port_);
    return *Tracer::Create(std::move(options));
  }

  Collector collector_;
  int port_ = 0;
  const std::unique_ptr<grpc::Server> server_ =
      grpc::ServerBuilder()
          .AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_)
          .RegisterService(&collector_)
          .BuildAndStart();
};

TEST_F(TracerTest, SendsWhatAllThreadsEndedBeforeAFlush) {
  const std::unique_ptr<Tracer> tracer =
      MakeTracer({.delay = absl::Hours(1), .max_queue = 4000, .max_batch = 64});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 250; ++j) StartSpan(tracer.get(), Span::Kind::kInternal, "round", kParent).End();
    });
  }
  for (std::thread& thread : threads) thread.join();
  // A flush may give up while the machine is busy.
  for (int i = 0; i < 30 && collector_.ids().size() < 1000; ++i) tracer->Flush();
  EXPECT_EQ(collector_.ids().size(), 1000);
}

TEST_F(TracerTest, ASpanIsSentOnceThoughItIsMovedAndEndedTwice) {
  const std::unique_ptr<Tracer> tracer = MakeTracer();
  {
    Span first = StartSpan(tracer.get(), Span::Kind::kServer, "a", "");
    Span second = std::move(first);
    second.End();
    second.End();
    EXPECT_FALSE(first.records() || second.records());
  }
  for (int i = 0; i < 30 && collector_.ids().empty(); ++i) tracer->Flush();
  EXPECT_EQ(collector_.ids().size(), 1);
}

TEST_F(TracerTest, AShareOfTracesIsTheSameEverywhere) {
  const TraceOptions half{.roots = TraceOptions::Roots::kRatio, .ratio = 0.5, .follows_parent = false};
  const std::unique_ptr<Tracer> here = MakeTracer(half), there = MakeTracer(half);
  int sampled = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::string trace =
        ToTraceparent({.trace_id = absl::StrFormat("%09d%07d", i, 7919 * i), .span_id = "12345678"});
    EXPECT_EQ(StartSpan(here.get(), Span::Kind::kServer, "", trace).records(),
              StartSpan(there.get(), Span::Kind::kServer, "", trace).records());
    // Without a parent, the ids are drawn.
    sampled += StartSpan(here.get(), Span::Kind::kServer, "", "").records() ? 1 : 0;
  }
  // Six standard deviations of a fair coin.
  EXPECT_NEAR(sampled, 500, 95);
}

}  // namespace
}  // namespace outrider
