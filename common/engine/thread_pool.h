// A small fork-join pool for the engine's steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

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

  // Has workers that sleep watch for a job again: a hint, from any thread, that Run is about to be called.
  // They wake up while the caller is still on its way.
  void Wake();

  int threads() const { return threads_; }

 private:
  using Call = void (*)(void* object, int task, int worker);

  // A fork costs about as many moves of cache lines between cores as it touches lines, so what a worker needs
  // to know is in one line, and each worker's range in a line that the caller touches only to help out.
  struct alignas(64) Job {
    // Odd while the fields below change. They may be read at any time; what was read holds if `version` was
    // even before and is the same after.
    std::atomic<uint32_t> version{0};
    std::atomic<int> tasks{0};
    std::atomic<Call> call{nullptr};
    std::atomic<void*> object{nullptr};
  };
  // How far a range has been taken: (version of the job << 32) | next task. An older version means: not at
  // all.
  struct alignas(64) Range {
    std::atomic<uint64_t> taken{0};
  };

  void RunShared(int tasks, Call call, void* object);
  // Makes this the present job, of which TakeTasks takes.
  void Publish(int tasks, Call call, void* object);
  void Work(int worker);
  // Takes tasks of the present job, first of the worker's own range, until none is left anywhere.
  void TakeTasks(int worker);

  const int threads_;
  std::unique_ptr<Range[]> ranges_;
  Job job_;
  alignas(64) std::atomic<int> unfinished_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<uint32_t> alarms_{0};  // what sleepers wait to change
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace outrider
