// Lets a coroutine wait for an event or a deadline.
#pragma once

#include <chrono>

#include "common/net/asio.h"

namespace outrider {

using Clock = std::chrono::steady_clock;

inline double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// For the executor's thread only. Must outlive its waiter. `Timer` is the timer of the executor's context.
template <class Timer>
class BasicEvent {
 public:
  explicit BasicEvent(const asio::any_io_executor& executor) : timer_(executor) {}

  // Returns on the next Notify, or at `deadline`. For one coroutine at a time.
  asio::awaitable<void> Wait(Clock::time_point deadline = Clock::time_point::max()) {
    boost::system::error_code ignored;
    timer_.expires_at(deadline);
    co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }

  // Wakes the coroutine that waits now.
  void Notify() { timer_.cancel(); }

 private:
  Timer timer_;
};

// For an io_context, which has sockets.
using SocketEvent = BasicEvent<asio::steady_timer>;

}  // namespace outrider
