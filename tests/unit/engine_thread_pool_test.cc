#include "common/engine/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace outrider {
namespace {

TEST(ThreadPool, EveryTaskRunsOnceAndRunWaitsForAll) {
  for (const int threads : {1, 2, 4, 9}) {
    ThreadPool pool(threads);
    for (const int tasks : {0, 1, 2, 3, 17, 1000}) {
      for (int repeat = 0; repeat < 20; ++repeat) {
        std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
        pool.Run(tasks, [&](int task, int) { runs[static_cast<size_t>(task)].fetch_add(1); });
        for (const std::atomic<int>& count : runs) ASSERT_EQ(count.load(), 1);
      }
    }
  }
}

TEST(ThreadPool, AWorkersNumberIsItsOwnWhileATaskRuns) {
  ThreadPool pool(4);
  std::atomic<bool> busy[4] = {};
  std::atomic<int> clashes = 0;
  for (int repeat = 0; repeat < 200; ++repeat) {
    pool.Run(16, [&](int, int worker) {
      if (busy[worker].exchange(true)) clashes.fetch_add(1);
      std::this_thread::yield();
      busy[worker].store(false);
    });
  }
  EXPECT_EQ(clashes.load(), 0);
}

TEST(ThreadPool, JobsAfterAPauseFindTheWorkersAsleepAndStillFinish) {
  ThreadPool pool(3);
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // far longer than workers spin
    std::atomic<int> sum = 0;
    pool.Run(100, [&](int task, int) { sum.fetch_add(task); });
    EXPECT_EQ(sum.load(), 4950);
  }
}

TEST(ThreadPool, WhoHasNothingLeftTakesFromTheOthers) {
  ThreadPool pool(2);
  // Task 0, the first of the caller's half, waits for all others, so the worker must do the rest of that
  // half.
  std::atomic<int> others = 0;
  pool.Run(8, [&](int task, int) {
    if (task != 0) {
      others.fetch_add(1);
    } else {
      while (others.load() < 7) std::this_thread::yield();
    }
  });
  EXPECT_EQ(others.load(), 7);
}

TEST(ThreadPool, AWorkerThatIsLateAtTheEndRunsNothing) {
  // The last job may be over, and its function gone, before a worker has looked at it.
  std::atomic<int> calls = 0;
  const auto count = [&](int, int) { calls.fetch_add(1); };
  for (int repeat = 1; repeat <= 3000; ++repeat) {
    {
      ThreadPool pool(4);
      pool.Run(8, count);
    }
    ASSERT_EQ(calls.load(), 8 * repeat);
  }
}

TEST(ThreadPool, IdleWorkersUseNoCpu) {
  ThreadPool pool(4);
  pool.Run(8, [](int, int) {});
  const auto cpu_seconds = [] {
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu_seconds() - before, 0.02);
}

}  // namespace
}  // namespace outrider
