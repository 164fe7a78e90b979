// The execution context of the coordinator's coroutines.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/net/asio.h"
#include "common/rpc/queue_poller.h"
#include "coordinator/servers/grpc_timer.h"

namespace outrider {

// An io_context for gRPC's streams. One thread runs the handlers that are ready, and polls a completion queue
// when none is. An event of a stream wakes only the thread that acts on it.
class GrpcContext {
 public:
  // An executor as Asio defines it. Thread-safe, as are its copies.
  class Executor {
   public:
    explicit Executor(GrpcContext* context) : context_(context) {}

    void execute(auto function) const {
      asio::post(context_->ready_, std::move(function));
      const std::thread::id thread = context_->thread_.load(std::memory_order_relaxed);
      if (std::this_thread::get_id() != thread) context_->poller_.Wake();
    }
    asio::execution_context& query(asio::execution::context_t /*property*/) const noexcept {
      return context_->ready_;
    }
    static constexpr asio::execution::blocking_t query(asio::execution::blocking_t /*property*/) noexcept {
      return asio::execution::blocking.never;
    }
    bool operator==(const Executor&) const noexcept = default;

   private:
    GrpcContext* context_;
  };

  // See QueuePoller for `busy_poll`.
  explicit GrpcContext(absl::Duration busy_poll = absl::ZeroDuration()) : poller_(busy_poll) {
    poller_.Attach(&queue_);
  }
  // Waits for the streams to end.
  ~GrpcContext() { poller_.Detach(); }

  Executor get_executor() { return Executor(this); }

  // The queue, whose tags must be QueueTags, and its poller, which streams on the queue must Join.
  grpc::CompletionQueue& queue() { return queue_; }
  QueuePoller& poller() { return poller_; }

  // Runs the handlers that are ready, or waits for one until `deadline`. False if none ran. For one thread.
  bool RunSome(Clock::time_point deadline) {
    thread_ = std::this_thread::get_id();
    for (bool waited = false;; waited = true) {
      timers_.Expire(Clock::now());
      if (ready_.poll() > 0) return true;
      if (waited && Clock::now() >= deadline) return false;
      const Clock::time_point next = std::min(deadline, timers_.next());
      poller_.Poll(next == Clock::time_point::max() ? absl::InfiniteFuture()
                                                    : absl::Now() + absl::FromChrono(next - Clock::now()));
    }
  }
  [[noreturn]] void Run() {
    while (true) RunSome(Clock::time_point::max());
  }

 private:
  grpc::CompletionQueue queue_;
  QueuePoller poller_;
  std::atomic<std::thread::id> thread_;
  asio::io_context ready_{1};  // the handlers that are ready to run; its own reactor is not used
  const asio::executor_work_guard<asio::io_context::executor_type> never_out_of_work_ =
      asio::make_work_guard(ready_);
  GrpcTimers& timers_ = asio::use_service<GrpcTimers>(ready_);
};

// For a StallWatch, on one thread: returns whether the executor has not yet run what an earlier call posted.
inline std::function<bool()> ExecutorIsStuck(const asio::any_io_executor& executor) {
  return [executor, done = std::make_shared<std::atomic<bool>>(true)] {
    if (!done->exchange(false)) return true;
    asio::post(executor, [done] { *done = true; });
    return false;
  };
}

}  // namespace outrider
