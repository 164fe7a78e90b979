// Coroutines that run beside the one that waits for them all.
#pragma once

#include <exception>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "common/net/asio.h"
#include "coordinator/servers/grpc_timer.h"

namespace outrider {

// Executor thread. Must outlive its tasks: the owner waits for them, also after an exception.
class TaskGroup {
 public:
  explicit TaskGroup(const asio::any_io_executor& executor) : executor_(executor), ended_(executor) {}

  // Starts a task, which counts from now on, begun or not. Calls `on_end` with the exception that ended it,
  // or null, and with its result if it has one. Throws, and calls nothing, if the task cannot be started.
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

  // Waits until none runs. For one coroutine at a time.
  asio::awaitable<void> Wait() {
    while (running_ > 0) co_await ended_.Wait();
  }

 private:
  const asio::any_io_executor executor_;
  int running_ = 0;
  Event ended_;
};

}  // namespace outrider
