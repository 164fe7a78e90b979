// Which endpoint a URL means, and the log of refused requests.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "common/net/event.h"

namespace outrider {

struct Route {
  // kServer: "*", which stands for all of them in OPTIONS.
  enum class Kind { kUnknown, kServer, kHealth, kModels, kModel, kCompletions, kChat };

  Kind kind = Kind::kUnknown;
  std::string model = {};  // of kModel

  bool Posts() const { return kind == Kind::kCompletions || kind == Kind::kChat; }
  bool Takes(const std::string& method) const {
    if (kind == Kind::kServer) return false;
    return Posts() ? method == "POST" : method == "GET" || method == "HEAD";
  }
  const char* methods() const {
    if (kind == Kind::kServer) return "GET, HEAD, POST, OPTIONS";
    return Posts() ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
  }
};

// `path` is a URL's, without host and query.
Route RouteOf(const std::string& path);

// One thread.
class RefusalLog {
 public:
  // `count` is called for each refusal with its HTTP status; may be null.
  explicit RefusalLog(std::function<void(int status)> count) : count_(std::move(count)) {}
  ~RefusalLog();

  // Logs each status at most once in kQuiet, however many clients knock.
  void Add(int status);

 private:
  static constexpr std::chrono::seconds kQuiet{1};

  struct Status {
    int unreported = 0;
    Clock::time_point quiet_until = {};
  };

  static void Report(int status, Status& of);

  const std::function<void(int status)> count_;
  std::map<int, Status> statuses_;
};

}  // namespace outrider
