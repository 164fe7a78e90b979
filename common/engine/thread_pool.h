// A small fork-join thread pool for the engine's steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace outrider {

// Run(n, fn) calls fn(task, worker) once for every task in [0, n) and returns when all calls have returned.
// `worker` is in [0, threads()) and identifies the calling thread for the duration of the call, for scratch
// memory.
//
// Each worker starts with a contiguous range of tasks, the same for equal n, so that a thread reads the same
// weights in every step. A worker that has finished its range steals from the others, so Run never waits for
// a worker that has not woken up. The order of tasks is therefore unspecified, and tasks must not depend on
// each other.
//
// Run is called from one thread at a time; the caller is worker 0. After a job, workers spin for at most 50
// us waiting for the next one, then sleep. With one thread everything runs inline. Tasks must not throw or
// call Run.
class ThreadPool {
 public:
  // threads >= 1, the caller's included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  template <typename Function>
  void Run(int tasks, Function&& fn) {
    if (threads_ == 1 || tasks <= 1) {
      for (int task = 0; task < tasks; ++task) fn(task, 0);
      return;
    }
    using Type = std::remove_reference_t<Function>;
    RunShared(
        tasks, [](void* object, int task, int worker) { (*static_cast<Type*>(object))(task, worker); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // A hint from any thread that Run will be called soon: wakes sleeping workers, so that they are ready when
  // the job arrives.
  void Wake();

  int threads() const { return threads_; }
  // The first of `tasks` tasks in the range that `worker` starts with; for worker threads(), `tasks`.
  int FirstTask(int worker, int tasks) const {
    return static_cast<int>(static_cast<int64_t>(worker) * tasks / threads_);
  }

 private:
  using Call = void (*)(void* object, int task, int worker);

  // The cost of a fork is mostly cache-line transfers between cores. So everything that a worker must know is
  // on one line, and each worker's range is on a line that the caller touches only to steal.
  struct alignas(64) Job {
    // A sequence lock: odd while the fields below change. They may be read at any time; the values are valid
    // if `version` was even before and is unchanged after.
    std::atomic<uint32_t> version{0};
    std::atomic<int> tasks{0};
    std::atomic<Call> call{nullptr};
    std::atomic<void*> object{nullptr};
  };
  // Progress in a range: (version of the job << 32) | next task. An older version means that no task of the
  // range is taken yet.
  struct alignas(64) Range {
    std::atomic<uint64_t> taken{0};
  };

  void RunShared(int tasks, Call call, void* object);
  // Makes this the current job, from which TakeTasks takes.
  void Publish(int tasks, Call call, void* object);
  void Work(int worker);
  // Runs tasks of the current job, first from the worker's own range, until none is left anywhere.
  void TakeTasks(int worker);

  const int threads_;
  std::unique_ptr<Range[]> ranges_;
  Job job_;
  alignas(64) std::atomic<int> unfinished_{0};
  alignas(64) std::atomic<bool> asleep_{false};  // some worker sleeps, or is about to, and has not been woken
  std::atomic<uint32_t> alarms_{0};              // sleepers wait for it to change
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace outrider
