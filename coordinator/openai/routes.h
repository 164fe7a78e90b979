// Which endpoint a URL means, and the log of refused requests.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/net/asio.h"
#include "common/obs/log.h"
#include "common/text/percent.h"

namespace outrider {

struct Route {
  // kServer is "*", which in OPTIONS stands for the whole server.
  enum class Kind {
    kUnknown,
    kServer,
    kHealth,
    kMetrics,
    kModels,
    kModel,
    kCompletions,
    kChat,
    kTokenize,
    kDetokenize
  };

  Kind kind = Kind::kUnknown;
  std::string model = {};  // of kModel

  bool Generates() const { return kind == Kind::kCompletions || kind == Kind::kChat; }
  bool Posts() const { return Generates() || kind == Kind::kTokenize || kind == Kind::kDetokenize; }
  bool Takes(const std::string& method) const {
    if (kind == Kind::kServer) return false;
    return Posts() ? method == "POST" : method == "GET" || method == "HEAD";
  }
  const char* methods() const {
    if (kind == Kind::kServer) return "GET, HEAD, POST, OPTIONS";
    return Posts() ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
  }
};

// `url` is without host and query.
inline Route RouteOf(const std::string& url) {
  // A slash at the end is a common mistake that can mean nothing else.
  const std::string path(absl::StripSuffix(url, "/"));
  if (url == "*") return {Route::Kind::kServer};
  if (path == "/health") return {Route::Kind::kHealth};
  if (path == "/metrics") return {Route::Kind::kMetrics};
  if (path == "/v1/models") return {Route::Kind::kModels};
  if (path == "/v1/completions") return {Route::Kind::kCompletions};
  if (path == "/v1/chat/completions") return {Route::Kind::kChat};
  if (path == "/tokenize") return {Route::Kind::kTokenize};
  if (path == "/detokenize") return {Route::Kind::kDetokenize};
  absl::string_view model = path;
  if (absl::ConsumePrefix(&model, "/v1/models/") && !model.empty()) {
    return {Route::Kind::kModel, PercentDecoded(model)};
  }
  return {};
}

// Logs how many requests were refused, by HTTP status. One thread.
class RefusalLog {
 public:
  ~RefusalLog() {
    for (auto& [status, of] : statuses_) {
      if (of.unreported > 0) Report(status, of);
    }
  }

  // Logs each status at most once per kQuiet, however many requests are refused.
  void Add(int status) {
    Status& of = statuses_[status];
    ++of.unreported;
    if (const Clock::time_point now = Clock::now(); now >= of.quiet_until) {
      of.quiet_until = now + kQuiet;
      Report(status, of);
    }
  }

 private:
  static constexpr std::chrono::seconds kQuiet{1};

  struct Status {
    int unreported = 0;
    Clock::time_point quiet_until = {};
  };

  static void Report(int status, Status& of) {
    LogInfo("http requests refused", {{"status", status}, {"requests", std::exchange(of.unreported, 0)}});
  }

  std::map<int, Status> statuses_;
};

}  // namespace outrider
