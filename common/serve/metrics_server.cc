#include "common/serve/metrics_server.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/obs/log.h"
#include "common/obs/metric_families.h"

namespace outrider {
namespace {

// Scrapers are few.
constexpr int kMaxConnections = 64;

}  // namespace

void ModelNameLabel::Set(const std::string& model_name) {
  absl::MutexLock lock(&mutex_);
  model_name_ = model_name;
}

std::vector<prometheus::MetricFamily> ModelNameLabel::Collect() const {
  std::vector<prometheus::MetricFamily> families = registry_->Collect();
  absl::MutexLock lock(&mutex_);
  if (model_name_.empty()) return families;
  for (prometheus::MetricFamily& family : families) {
    for (prometheus::ClientMetric& metric : family.metric)
      metric.label.push_back({"model_name", model_name_});
  }
  return families;
}

std::vector<prometheus::MetricFamily> LogLines::Collect() const {
  prometheus::ClientMetric lines;
  lines.counter.value = static_cast<double>(DroppedLogLines());
  return {{absl::StrCat(kMetricPrefix, "log_lines_dropped_total"),
           "Lines of the log that were dropped: nobody read it.",
           prometheus::MetricType::Counter,
           {lines}}};
}

absl::StatusOr<std::unique_ptr<HttpServer>> ServeMetrics(
    const std::string& listen, std::vector<std::shared_ptr<prometheus::Collectable>> series) {
  const auto refuse = [](int status, const std::string& message) {
    HttpResponse response;
    response.status = status;
    response.headers = {{"Content-Type", "text/plain; charset=utf-8"}};
    response.body = absl::StrCat(message, "\n");
    return response;
  };
  const auto check = [refuse](const HttpRequest& head) -> std::optional<HttpResponse> {
    if (head.path != "/metrics")
      return refuse(404, absl::StrCat("nothing but /metrics is here, not ", head.path));
    if (head.method == "GET" || head.method == "HEAD") return std::nullopt;
    HttpResponse refusal =
        refuse(405, absl::StrCat("/metrics does not answer ", head.method, " but GET, HEAD"));
    refusal.headers.emplace_back("Allow", "GET, HEAD");
    return refusal;
  };
  const auto answer =
      [series = std::move(series)](const HttpRequest& /*request*/) -> asio::awaitable<HttpResponse> {
    std::vector<prometheus::MetricFamily> families;
    for (const auto& each : series) {
      std::vector<prometheus::MetricFamily> its = each->Collect();
      std::move(its.begin(), its.end(), std::back_inserter(families));
    }
    HttpResponse response;
    response.headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}};
    response.body = prometheus::TextSerializer().Serialize(families);
    co_return response;
  };
  return HttpServer::Start(
      "--metrics-listen", listen, /*tls=*/nullptr, {.max_connections = kMaxConnections},
      {.check = check,
       .answer = answer,
       .refuse = [refuse](int status, const std::string& message, const std::string& /*path*/) {
         return refuse(status, message);
       }});
}

void AddBuildInfo(prometheus::Registry& registry, const std::string& version) {
  AddGauge(registry, "build_info", "1; which version this is.", {{"version", version}})->Set(1);
}

}  // namespace outrider
