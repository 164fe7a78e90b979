// Notices that a thread which has work makes no progress, or that a port takes no connections.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace outrider {

// Asks at equal intervals, kChecks in a timeout, whether the thread is stuck. It counts as stalled when it
// was stuck kChecks times in a row. Checks are counted rather than time, so that a process that was stopped
// as a whole (SIGSTOP, a paused virtual machine) and goes on does not look stalled.
class StallWatch {
 public:
  static constexpr int kChecks = 8;

  // Starts to watch; a zero timeout switches the watch off. Both functions are called on the watch's own
  // thread and must not block:
  // - `is_stuck` says whether the thread has work and has done nothing since the last call;
  // - `on_change` is told when the thread has stalled (true) and when it goes on (false). Each is also
  //   logged in one line, which names `thread`.
  StallWatch(std::string thread, absl::Duration timeout, std::function<bool()> is_stuck,
             std::function<void(bool stalled)> on_change);
  ~StallWatch() {
    stopped_.Notify();
    if (thread_.joinable()) thread_.join();
  }
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

 private:
  void Run();

  const std::string name_;
  const absl::Duration timeout_;
  const std::function<bool()> is_stuck_;
  const std::function<void(bool stalled)> on_change_;
  absl::Notification stopped_;
  std::thread thread_;  // not joinable: the watch is off
};

// Connects to "HOST:PORT", which a server of this process has bound, and sends bytes that no protocol knows,
// so that a server that takes the connection answers or closes it. False if neither happens within a second,
// if the connection is refused, or if there is no descriptor for it. Any thread.
bool AcceptsConnections(const std::string& bound);

}  // namespace outrider
