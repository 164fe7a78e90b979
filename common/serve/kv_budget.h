// Divides memory among the KV pools of the models that one process loads at the same time.
#pragma once

#include <cstddef>
#include <limits>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace outrider {

// All pools together get a fraction of the memory that is free once every model has all but its pool. Each
// gets as many blocks, since a sequence needs its keys and values in all of them. Thread-safe.
class KvBudget {
 public:
  // Of so many models, whose blocks hold as many tokens.
  KvBudget(int models, double fraction) : models_(models), fraction_(fraction) {}

  // For RunnerOptions::pool_bytes of each model, once. Blocks until all have asked: where a model cannot be
  // loaded, the process has to end. The memory that counts is the least that any found free.
  double PoolBytes(double free_bytes, size_t block_bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const int models_;
  const double fraction_;
  absl::Mutex mutex_;
  int asked_ ABSL_GUARDED_BY(mutex_) = 0;
  double free_bytes_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<double>::infinity();
  double block_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of a block of each
};

}  // namespace outrider
