#include "common/engine/thread_pool.h"

#include <chrono>

namespace outrider {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kSpinsPerClockRead = 32;
constexpr int kSpinsBeforeYield = 4096;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(threads), ranges_(new Range[static_cast<size_t>(threads)]) {
  for (int worker = 1; worker < threads_; ++worker) workers_.emplace_back([this, worker] { Work(worker); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  job_.fetch_add(1);
  job_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int tasks, Task fn) {
  if (threads_ == 1 || tasks <= 1) {
    for (int task = 0; task < tasks; ++task) fn(task, 0);
    return;
  }
  fn_ = &fn;
  unfinished_.store(tasks, std::memory_order_relaxed);
  for (int64_t t = 0; t < threads_; ++t) {
    const uint64_t next = static_cast<uint64_t>(t * tasks / threads_);
    const uint64_t end = static_cast<uint64_t>((t + 1) * tasks / threads_);
    ranges_[static_cast<size_t>(t)].state.store(next << 32 | end, std::memory_order_release);
  }
  job_.fetch_add(1);
  if (sleepers_.load() > 0) job_.notify_all();
  TakeTasks(0);
  for (int spins = 0; unfinished_.load(std::memory_order_acquire) > 0; ++spins) {
    // A worker that was descheduled inside a task may need this very CPU.
    if (spins < kSpinsBeforeYield) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::TakeTasks(int worker) {
  for (int i = 0; i < threads_; ++i) {
    std::atomic<uint64_t>& state = ranges_[static_cast<size_t>((worker + i) % threads_)].state;
    uint64_t range = state.load(std::memory_order_acquire);
    while (range >> 32 < (range & 0xffffffff)) {
      // Success may hand out a task of a later job than the one `range` was read in; it is a task all the
      // same.
      if (!state.compare_exchange_weak(range, range + (uint64_t{1} << 32), std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
        continue;
      }
      (*fn_)(static_cast<int>(range >> 32), worker);
      unfinished_.fetch_sub(1, std::memory_order_acq_rel);
      range = state.load(std::memory_order_acquire);
    }
  }
}

void ThreadPool::Work(int worker) {
  uint32_t seen = 0;
  while (true) {
    bool found = false;
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    for (int spins = 1; !found; ++spins) {
      if (job_.load(std::memory_order_acquire) != seen) {
        found = true;
      } else if (spins % kSpinsPerClockRead == 0 && std::chrono::steady_clock::now() > deadline) {
        break;
      }
      Pause();
    }
    if (!found) {
      sleepers_.fetch_add(1);
      while (job_.load() == seen) job_.wait(seen);
      sleepers_.fetch_sub(1);
    }
    seen = job_.load();
    if (stop_.load()) return;
    TakeTasks(worker);
  }
}

}  // namespace outrider
