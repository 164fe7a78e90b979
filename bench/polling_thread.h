// A thread that only polls the queue of a server.
#pragma once

#include <atomic>
#include <thread>

#include "common/rpc/queue_poller.h"

namespace outrider {

// Must outlive the server.
class PollingThread {
 public:
  // See QueuePoller for `busy_poll`.
  explicit PollingThread(absl::Duration busy_poll = absl::ZeroDuration()) : poller_(busy_poll) {}
  ~PollingThread() {
    stop_ = true;
    poller_.Wake();
    thread_.join();
  }
  QueuePoller* poller() { return &poller_; }

 private:
  QueuePoller poller_;
  std::atomic<bool> stop_ = false;
  std::thread thread_{[this] {
    while (!stop_) poller_.Poll(absl::InfiniteFuture());
  }};
};

}  // namespace outrider
