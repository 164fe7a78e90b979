// Timers, events and groups of coroutines of a GrpcContext.
#pragma once

#include <exception>
#include <map>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/any_invocable.h"
#include "common/net/asio.h"
#include "common/spec/check.h"

namespace outrider {

class GrpcTimer;

// The pending timers of one context. Asio's own timers would fire on another thread, that of its reactor.
class GrpcTimers final : public asio::execution_context::service {
 public:
  using key_type = GrpcTimers;
  static inline asio::execution_context::id id;

  explicit GrpcTimers(asio::execution_context& context) : service(context) {}

  // When the next timer is due; the maximum if there is none.
  Clock::time_point next() const {
    return waiting_.empty() ? Clock::time_point::max() : waiting_.begin()->first;
  }
  void Expire(Clock::time_point now);

 private:
  friend class GrpcTimer;

  // Drops the handlers. They own the coroutines that wait, which end with the context.
  void shutdown() override;

  std::multimap<Clock::time_point, GrpcTimer*> waiting_;
};

// Has the members of asio::steady_timer that are used here, with the same meaning: handlers are posted, with
// an error if the timer was cancelled, set again or destroyed. One wait at a time. The context's thread.
class GrpcTimer {
 public:
  // `executor` must be that of a GrpcContext.
  explicit GrpcTimer(const asio::any_io_executor& executor)
      : executor_(executor),
        timers_(asio::use_service<GrpcTimers>(asio::query(executor, asio::execution::context))),
        place_(timers_.waiting_.end()) {}
  ~GrpcTimer() { cancel(); }

  void expires_at(Clock::time_point time) {
    cancel();
    time_ = time;
  }
  void expires_after(Clock::duration duration) { expires_at(Clock::now() + duration); }

  // The handler is a void(error_code). It runs on the executor unless it has one of its own.
  template <class Token>
  auto async_wait(Token&& token) {
    return asio::async_initiate<Token, void(boost::system::error_code)>(
        [this](auto handler) {
          OUTRIDER_CHECK(!on_end_);
          auto executor = asio::get_associated_executor(handler, executor_);
          on_end_ = [handler = std::move(handler),
                     executor = std::move(executor)](boost::system::error_code error) mutable {
            asio::post(executor, [handler = std::move(handler), error]() mutable { handler(error); });
          };
          place_ = timers_.waiting_.emplace(time_, this);
        },
        token);
  }

  void cancel() { End(asio::error::operation_aborted); }

 private:
  friend class GrpcTimers;

  void End(boost::system::error_code error) {
    if (auto on_end = Take()) on_end(error);
  }
  // Null if nobody waits.
  absl::AnyInvocable<void(boost::system::error_code)> Take() {
    if (on_end_) timers_.waiting_.erase(std::exchange(place_, timers_.waiting_.end()));
    return std::exchange(on_end_, nullptr);
  }

  const asio::any_io_executor executor_;
  GrpcTimers& timers_;
  Clock::time_point time_;
  absl::AnyInvocable<void(boost::system::error_code)> on_end_;
  std::multimap<Clock::time_point, GrpcTimer*>::iterator place_;  // valid while somebody waits
};

inline void GrpcTimers::Expire(Clock::time_point now) {
  while (next() <= now) waiting_.begin()->second->End({});
}

inline void GrpcTimers::shutdown() {
  while (!waiting_.empty()) waiting_.begin()->second->Take();
}

using Event = BasicEvent<GrpcTimer>;  // an event of a GrpcContext, where requests are served

// Coroutines that run beside the one that waits for them all. Executor thread. Must outlive its tasks: the
// owner waits for them, also after an exception.
class TaskGroup {
 public:
  explicit TaskGroup(const asio::any_io_executor& executor) : executor_(executor), ended_(executor) {}

  // Starts a task, which Wait counts from now on, begun or not. Calls `on_end` with the exception that ended
  // it, or null, and with its result if it has one. Throws, and calls nothing, if the task cannot be started.
  template <class Result, class OnEnd>
  void Spawn(asio::awaitable<Result> task, OnEnd on_end) {
    ++running_;
    absl::Cleanup not_started = [this] { --running_; };
    asio::co_spawn(executor_, std::move(task),
                   [this, on_end = std::move(on_end)](const std::exception_ptr& exception, auto&&... result) {
                     on_end(exception, std::forward<decltype(result)>(result)...);
                     --running_;
                     ended_.Notify();
                   });
    std::move(not_started).Cancel();
  }

  // Waits until no task runs. For one coroutine at a time.
  asio::awaitable<void> Wait() {
    while (running_ > 0) co_await ended_.Wait();
  }

 private:
  const asio::any_io_executor executor_;
  int running_ = 0;
  Event ended_;
};

}  // namespace outrider
