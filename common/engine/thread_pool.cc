#include "common/engine/thread_pool.h"

#include <chrono>
#include <cstddef>

namespace outrider {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kSpinsPerClockRead = 32;
constexpr int kSpinsBeforeYield = 4096;
// Ranges without tasks keep an old version; all are refreshed before versions wrap around.
constexpr uint32_t kJobsBetweenRefreshes = 1 << 20;

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
  // A worker may still be about to look at the last job, whose function may be gone.
  Publish(0, nullptr, nullptr);
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::RunShared(int tasks, Call call, void* object) {
  unfinished_.store(tasks, std::memory_order_relaxed);
  Publish(tasks, call, object);
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

void ThreadPool::Publish(int tasks, Call call, void* object) {
  // Workers that still look at the last job find all its ranges taken.
  const uint32_t version = job_.version.load(std::memory_order_relaxed);
  if (version % kJobsBetweenRefreshes == 0) {
    for (int owner = 0; owner < threads_; ++owner) {
      ranges_[static_cast<size_t>(owner)].taken.store(uint64_t{version} << 32 | 0xffffffff,
                                                      std::memory_order_relaxed);
    }
  }
  job_.version.store(version + 1, std::memory_order_relaxed);
  job_.tasks.store(tasks, std::memory_order_release);
  job_.call.store(call, std::memory_order_release);
  job_.object.store(object, std::memory_order_release);
  job_.version.store(version + 2);
  Wake();
}

void ThreadPool::Wake() {
  // Once for each sleep. A worker that has been woken may wait long for a CPU; waking it again would not
  // help.
  if (!asleep_.load() || !asleep_.exchange(false)) return;
  alarms_.fetch_add(1);
  alarms_.notify_all();
}

void ThreadPool::TakeTasks(int worker) {
  const uint32_t version = job_.version.load(std::memory_order_acquire);
  const int tasks = job_.tasks.load(std::memory_order_acquire);
  const Call call = job_.call.load(std::memory_order_acquire);
  void* const object = job_.object.load(std::memory_order_acquire);
  if (version % 2 != 0 || job_.version.load(std::memory_order_relaxed) != version) return;  // Work retries

  int done = 0;
  for (int i = 0; i < threads_; ++i) {
    const int owner = (worker + i) % threads_;
    const uint64_t begin = static_cast<uint64_t>(FirstTask(owner, tasks));
    const uint64_t end = static_cast<uint64_t>(FirstTask(owner + 1, tasks));
    std::atomic<uint64_t>& taken = ranges_[static_cast<size_t>(owner)].taken;
    uint64_t seen = taken.load(std::memory_order_acquire);
    while (true) {
      // Versions wrap around, so compare their distance. A newer version means that this job is over. An
      // older one means that it is not: a job ends only once all its ranges carry its version.
      const int32_t age = static_cast<int32_t>(version - static_cast<uint32_t>(seen >> 32));
      const uint64_t next = age == 0 ? seen & 0xffffffff : begin;
      if (age < 0 || next >= end) break;
      const uint64_t claimed = static_cast<uint64_t>(version) << 32 | (next + 1);
      if (!taken.compare_exchange_weak(seen, claimed, std::memory_order_acq_rel, std::memory_order_acquire))
        continue;
      call(object, static_cast<int>(next), worker);
      ++done;
      seen = claimed;
    }
  }
  if (done > 0) unfinished_.fetch_sub(done, std::memory_order_acq_rel);
}

void ThreadPool::Work(int worker) {
  uint32_t seen = 0;
  while (true) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    for (int spins = 1; job_.version.load(std::memory_order_acquire) == seen; ++spins) {
      Pause();
      if (spins % kSpinsPerClockRead == 0 && std::chrono::steady_clock::now() > deadline) {
        // A job published after this check of the version finds somebody asleep and rings the alarm.
        const uint32_t alarms = alarms_.load();
        asleep_.store(true);
        if (job_.version.load() == seen) alarms_.wait(alarms);
        break;
      }
    }
    const uint32_t version = job_.version.load(std::memory_order_acquire);
    // Check after reading the version: a worker that took the destructor's job for an ordinary one would
    // sleep through the last wake-up.
    if (stop_.load()) return;
    if (version % 2 != 0 || version == seen) continue;
    seen = version;
    TakeTasks(worker);
  }
}

}  // namespace outrider
