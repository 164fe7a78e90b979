// The parts of Boost.Asio that run coroutines, and an event that coroutines wait for. Include this file
// instead of Boost's own headers.
#pragma once

// Must come first: Boost 1.74 uses std::exchange without including its header.
#include <utility>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/system/error_code.hpp>
#include <chrono>

namespace outrider {

namespace asio = boost::asio;

using Clock = std::chrono::steady_clock;

inline double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// Lets a coroutine wait for an event or a deadline. For the executor's thread only. Must outlive its waiter.
// `Timer` is the timer of the executor's context.
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

// An event for an io_context, the context that has sockets.
using SocketEvent = BasicEvent<asio::steady_timer>;

}  // namespace outrider
