// Tells the log and the metrics of HTTP requests that the gateway refuses by itself.
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "common/net/event.h"

namespace outrider {

// One thread.
class RefusalLog {
 public:
  // `count` is called for each refusal with its HTTP status; may be null.
  explicit RefusalLog(std::function<void(int status)> count) : count_(std::move(count)) {}
  ~RefusalLog();

  // Writes to the log at most once in kQuiet for each status, however many clients knock.
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
