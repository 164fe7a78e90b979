// Lets a coroutine wait until something happens or a time has come.
#pragma once

#include <chrono>

#include "coordinator/link/asio.h"

namespace outrider {

using Clock = std::chrono::steady_clock;

inline double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// One executor thread. Must outlive those who wait.
class Event {
 public:
  explicit Event(const asio::any_io_executor& executor) : timer_(executor) {}

  // Returns on the next Notify, or at `deadline`.
  asio::awaitable<void> Wait(Clock::time_point deadline = Clock::time_point::max()) {
    boost::system::error_code ignored;
    timer_.expires_at(deadline);
    co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }

  // Wakes whoever waits now.
  void Notify() { timer_.cancel(); }

 private:
  asio::steady_timer timer_;
};

}  // namespace outrider
