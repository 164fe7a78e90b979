// A small fork-join pool for the engine's steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace outrider {

// Run(n, fn) calls fn(task, worker) once for every task in [0, n) and returns when all have returned;
// `worker` is in [0, threads()) and names the calling thread for the time of that call, for scratch memory.
//
// Tasks are dealt out in contiguous ranges, the same for equal n, so that a thread meets the same weights
// every step; who runs dry takes from the others, so Run never waits for a worker that has not woken up. The
// order of tasks is therefore unspecified: they must not depend on each other.
//
// Run is called from one thread at a time and is itself worker 0. After a job the workers watch for the next
// one for at most 50 us, then sleep. With one thread everything runs inline. Tasks must not throw or call
// Run.
class ThreadPool {
 public:
  using Task = absl::FunctionRef<void(int task, int worker)>;

  // threads >= 1, the caller's included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  void Run(int tasks, Task fn);
  int threads() const { return threads_; }

 private:
  // The tasks of a range that nobody has taken: (next << 32) | end.
  struct alignas(64) Range {
    std::atomic<uint64_t> state{0};
  };

  void Work(int worker);
  // Takes tasks, first of the worker's own range, until none is left anywhere.
  void TakeTasks(int worker);

  const int threads_;
  std::unique_ptr<Range[]> ranges_;
  // Set before the ranges are published; a taken task keeps it valid, as Run waits for it.
  const Task* fn_ = nullptr;
  alignas(64) std::atomic<int> unfinished_{0};
  alignas(64) std::atomic<uint32_t> job_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace outrider
